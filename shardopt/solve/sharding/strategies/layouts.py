"""Layouts of an operation: every assignment of mesh axes to its factors, with the shardings that
follow from it, without costs.

They depend on the mesh by the names of its axes and by what these divide. So meshes of one number
of axes mostly share them: the sizes of 4x8 and 8x4 divide 1024 alike."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

import numpy as np

from shardopt.graph.op_graph import FactorRule, Island, Op, Tensor
from shardopt.mesh.mesh import Mesh, Sharding, axes_text, matching_axes
from shardopt.mesh.shardings import live_axes
from shardopt.mesh.splits import may_split
from shardopt.solve.sharding.strategies.factors import Axes, Split, is_feasible, shardable_factors
from shardopt.solve.sharding.strategies.linear import Linear

# The axes along which the operands of a linear mode are unreduced.
Terms = Mapping[tuple[int, ...], Axes]


@dataclass(frozen=True, eq=False)
class Column:
    """The sharding of one tensor under each strategy of a node: `distinct[index[s]]`. One object
    for each content."""

    shardings: tuple[Sharding, ...]
    distinct: tuple[Sharding, ...]
    index: np.ndarray


@dataclass(frozen=True, eq=False)
class SplitLayout:
    """One assignment of axes to factors. `made` are the results before sums along the axes
    `reduced` are taken, `forms` the shardings in which the results may end: as many strategies."""

    split: Split
    has_terms: bool
    operands: tuple[Sharding, ...]
    made: tuple[Sharding, ...]
    reduced: Axes
    forms: tuple[tuple[Sharding, ...], ...]


@dataclass(frozen=True, eq=False)
class Layout:
    """All assignments, the empty one first, and the columns of operands and results over all
    strategies."""

    splits: tuple[SplitLayout, ...]
    operands: tuple[Column, ...]
    results: tuple[Column, ...]


class Layouts:
    """The layouts and columns that were asked for so far, for any meshes. Objects given out are
    shared."""

    def __init__(self) -> None:
        self._layouts: dict[Hashable, Layout] = {}
        self._columns: dict[tuple[Sharding, ...], Column] = {}
        self._dividing: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}

    def of(
        self,
        op: Op,
        operands: Sequence[Tensor],
        results: Sequence[Tensor],
        mesh: Mesh,
        linear: Linear,
    ) -> Layout:
        """Those of `op` on tensors of these shapes."""
        key = (
            op.name,
            op.rule,
            op.windows,
            op.reducer,
            op.island,
            linear,
            *self._shapes(op, operands, results, mesh),
        )
        if key not in self._layouts:
            splits = tuple(_split_layouts(op, operands, results, mesh, linear))
            rows = [(each.operands, form) for each in splits for form in each.forms]
            self._layouts[key] = Layout(
                splits,
                tuple(self.column(tuple(row[0][k] for row in rows)) for k in range(len(operands))),
                tuple(self.column(tuple(row[1][k] for row in rows)) for k in range(len(results))),
            )
        return self._layouts[key]

    def column(self, shardings: tuple[Sharding, ...]) -> Column:
        """The one column with these entries."""
        if shardings not in self._columns:
            number = {sharding: n for n, sharding in enumerate(dict.fromkeys(shardings))}
            index = np.array([number[sharding] for sharding in shardings])
            self._columns[shardings] = Column(shardings, tuple(number), index)
        return self._columns[shardings]

    def _shapes(
        self, op: Op, operands: Sequence[Tensor], results: Sequence[Tensor], mesh: Mesh
    ) -> tuple[Hashable, ...]:
        """All that matters of the mesh and of the extents of tensors and factors."""
        ranks = tuple(len(tensor.shape) for tensor in (*operands, *results))
        if op.windows:  # borders are lines of neighbours, whose number counts
            return mesh.axes, ranks, *(tensor.shape for tensor in results)
        sizes = tuple(size for _, size in mesh.axes if size > 1)
        extents = (
            *(op.rule.sizes if op.rule else ()),
            *(extent for tensor in results for extent in tensor.shape),
        )
        return (
            mesh.axis_names,
            live_axes(mesh),
            ranks,
            *(self._divides(extent, sizes) for extent in extents),
        )

    def _divides(self, extent: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """For each set of axes whether its tiles divide the extent (1), make single elements of it
        (2), split it with padding (3), or do not."""
        key = (extent, sizes)
        if key not in self._dividing:
            sets = (
                some for count in range(1, len(sizes) + 1) for some in combinations(sizes, count)
            )
            self._dividing[key] = tuple(_division(extent, tiles) for tiles in map(prod, sets))
        return self._dividing[key]


def _split_layouts(
    op: Op, operands: Sequence[Tensor], results: Sequence[Tensor], mesh: Mesh, linear: Linear
) -> Iterator[SplitLayout]:
    if op.island is not None:
        sides = (op.island.operands, op.island.results)
        lies, made = (tuple(_on_mesh(dims, op.island, mesh) for dims in side) for side in sides)
        yield SplitLayout({}, False, lies, made, (), (made,))
        return
    for split, terms in _splits(op, mesh, linear):
        shardings = _shardings(op, split, terms, operands, results, mesh)
        if shardings is not None and not _pads_terms(shardings[0], operands, mesh):
            reduced = _reduced(op, split, terms, mesh)
            forms = tuple(_forms(reduced, terms, shardings[1], results, mesh, linear))
            yield SplitLayout(split, bool(terms), *shardings, reduced, forms)


def _on_mesh(dims: tuple[Axes, ...], island: Island, mesh: Mesh) -> Sharding:
    names = axis_names(island, mesh)
    return Sharding(tuple(tuple(own for a in dim for own in names.get(a, ())) for dim in dims))


def axis_names(island: Island, mesh: Mesh) -> Mapping[str, Axes]:
    """The axes of `mesh` in the place of each of the island's. Raises ValueError for another."""
    names = matching_axes(island.axes, mesh)
    if names is None:
        raise ValueError(
            "expected a mesh with the axes of the manual region "
            f"({axes_text(island.axes)}), found {mesh}"
        )
    return names


def _splits(op: Op, mesh: Mesh, linear: Linear) -> Iterator[tuple[Split, Terms]]:
    """Assignments of axes to factors that may be split so and to linear modes; the empty one comes
    first."""
    axes = live_axes(mesh)
    for targets in product((None, *shardable_factors(op), *linear.modes), repeat=len(axes)):
        split: dict[int, Axes] = {}
        terms: dict[tuple[int, ...], Axes] = {}
        for axis, target in zip(axes, targets, strict=True):
            if isinstance(target, int):
                split[target] = (*split.get(target, ()), axis)
            elif target is not None:
                terms[target] = (*terms.get(target, ()), axis)
        if is_feasible(op, split, mesh) and not (terms and _moves(op, split)):
            yield split, terms


def _moves(op: Op, split: Split) -> bool:
    """Whether borders are exchanged, which nobody has tried on unreduced values."""
    return any(window.factor in split for window in op.windows)


def _shardings(
    op: Op,
    split: Split,
    terms: Terms,
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    mesh: Mesh,
) -> tuple[tuple[Sharding, ...], tuple[Sharding, ...]] | None:
    """Shardings of operands and reduced results, or None if one of them is no plain tile
    assignment."""
    if op.rule is None:
        return tuple(map(_replicated, operands)), tuple(map(_replicated, results))
    sides = []
    for tensors, mappings in ((operands, op.rule.operands), (results, op.rule.results)):
        shardings = []
        for mapping in mappings:
            sharding = _sharding(mapping, split, op.rule, mesh)
            if sharding is None:
                return None
            shardings.append(sharding)
        # Values that regions capture stand behind the operands of the rule.
        sides.append((*shardings, *map(_replicated, tensors[len(mappings) :])))
    return tuple(
        _unreduced(sharding, k, terms, mesh) for k, sharding in enumerate(sides[0])
    ), sides[1]


def _pads_terms(shardings: Iterable[Sharding], tensors: Iterable[Tensor], mesh: Mesh) -> bool:
    return any(
        sharding.pads_terms(mesh, tensor.shape)
        for sharding, tensor in zip(shardings, tensors, strict=False)
    )


def _unreduced(sharding: Sharding, position: int, terms: Terms, mesh: Mesh) -> Sharding:
    over = {axis for mode, axes in terms.items() if position in mode for axis in axes}
    return Sharding(sharding.dims, tuple(axis for axis in mesh.axis_names if axis in over))


def _replicated(tensor: Tensor) -> Sharding:
    return Sharding.replicated(len(tensor.shape))


def _sharding(
    mapping: tuple[tuple[int, ...], ...], split: Split, rule: FactorRule, mesh: Mesh
) -> Sharding | None:
    dims: list[Axes] = []
    for factors in mapping:
        axes = _dim_axes(factors, split, rule, mesh)
        if axes is None:
            return None
        dims.append(axes)
    return Sharding(tuple(dims))


def _dim_axes(factors: Sequence[int], split: Split, rule: FactorRule, mesh: Mesh) -> Axes | None:
    """Axes that split a dimension made of `factors`, or None when the tiles would not be
    contiguous.

    Contiguous tiles come from splitting the major-most factor, and a further one only where all
    before it are split into single elements."""
    axes: Axes = ()
    exhausted = True
    for factor in factors:
        over = split.get(factor, ())
        if over and not exhausted:
            return None
        axes += over
        exhausted = exhausted and tiles(mesh, over) == rule.sizes[factor]
    return axes


def _forms(
    reduced: Axes,
    terms: Terms,
    results: tuple[Sharding, ...],
    tensors: Sequence[Tensor],
    mesh: Mesh,
    linear: Linear,
) -> Iterator[tuple[Sharding, ...]]:
    """The shardings in which the results may end: all-reduced, scattered onto one dimension,
    unreduced; or scattered along the faster axes, and all-reduced or unreduced along the slower
    ones, which send the most where they are scattered first.

    Scattering onto several dimensions doubles the strategies of a contraction over two axes, and
    improved plans by 0.01 % where it was tried."""
    is_summed = not terms or linear.sums
    if is_summed:
        yield results
    if not reduced or len(results) != 1:
        return
    [whole], [tensor] = results, tensors
    added_up = {axis for axes in terms.values() for axis in axes}
    leaves_terms = linear.contracts or added_up.issuperset(reduced)
    in_steps = leaves_terms and not _pads_terms((Sharding(whole.dims, reduced),), tensors, mesh)
    parts = [
        (reduced[:slow], _scattered(whole, reduced[slow:], dim))
        for slow in (range(len(reduced)) if in_steps else (0,))
        for dim in range(whole.rank)
        if is_summed and _scatters(whole, reduced[slow:], dim, tensor.shape, mesh)
    ]
    yield from ((part,) for _, part in parts)
    if linear.unreduced and in_steps:
        yield from (
            (Sharding(part.dims, left),) for left, part in ((reduced, whole), *parts) if left
        )


def _reduced(op: Op, split: Split, terms: Terms, mesh: Mesh) -> Axes:
    over = {
        axis
        for factor, axes in split.items()
        if op.rule and factor in op.rule.reduction
        for axis in axes
    }
    over.update(axis for axes in terms.values() for axis in axes)
    return tuple(axis for axis in mesh.axis_names if axis in over)


def _scattered(sharding: Sharding, axes: Axes, dim: int) -> Sharding:
    """The axes become the minor ones of the dimension: the device keeps a part of what it has."""
    return Sharding((*sharding.dims[:dim], (*sharding.dims[dim], *axes), *sharding.dims[dim + 1 :]))


def _scatters(sharding: Sharding, axes: Axes, dim: int, shape: tuple[int, ...], mesh: Mesh) -> bool:
    """Whether the dimension can be scattered: evenly, as a reduce-scatter does, and in the
    canonical order of axes, so that the same layout does not appear in two spellings."""
    order, scattered = mesh.axis_names.index, _scattered(sharding, axes, dim)
    return all(list(each) == sorted(each, key=order) for each in scattered) and not (
        shape[dim] % tiles(mesh, scattered.dims[dim])
    )


def _division(extent: int, count: int) -> int:
    if extent == count:
        return 2
    return 1 if extent % count == 0 else 3 * may_split(extent, count)


def tiles(mesh: Mesh, axes: Axes) -> int:
    """Tiles that some axes make together."""
    return prod(mesh.axis_size(axis) for axis in axes)
