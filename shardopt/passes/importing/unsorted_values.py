"""Values that are not made of sorted rows, where something that is meets them: whether they are had
by rows all the same (`shardopt.passes.importing.sorted_rows`).

What all rows share is; so is what is said of positions, if it is a statement about keys:

    compare LT, %position, %rows_below_p   =>   compare LT, %key, p"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.ir.rewriting import defining, past_barriers, shape_of
from shardopt.ir.shapes import broadcast, dimensions, reshape
from shardopt.ir.splats import read_splat, resized, splat_constant
from shardopt.passes.importing.coordinates import bounds, coordinate_dim
from shardopt.passes.importing.known_integers import direction
from shardopt.passes.importing.prefix_counts import PrefixCounts, follows
from shardopt.passes.importing.sorted_kinds import (
    ELEMENTWISE,
    Kind,
    NotSorted,
    Sorted,
    filled_by,
    splat_fill,
)

# How a position compared with a count is a key compared with a number: j < c(p) where key < p.
_BELOW = {("LT", 0), ("GE", 0), ("GT", 1), ("LE", 1)}  # and on which side positions stand


@dataclass(frozen=True)
class Unsorted:
    """How a value that is not made of sorted ones is had by rows, and what its padding holds."""

    filled: bool | None
    build: Callable[[], ir.Value]


@dataclass
class UnsortedValues:
    """Those in front of readers of sorted rows, of which `kinds` are known. `same` are values that
    are equal to something in front of them, whatever the order."""

    sort: ir.Operation
    kinds: Mapping[ir.Value, Kind]
    same: Mapping[ir.Value, ir.Value]
    _counts: PrefixCounts = field(default_factory=PrefixCounts)
    _known: dict[tuple[ir.Value, int], Unsorted] = field(default_factory=dict)

    def by_rows(self, value: ir.Value, dim: int) -> Unsorted:
        """Raises NotSorted for a value that says of position j what it says of no row."""
        if value not in self.kinds:
            value = past_barriers(value)
        known = self._known.get((value, dim))
        if known is None:
            known = self._read(value, dim)
            made: list[ir.Value] = []
            build = known.build

            def once() -> ir.Value:
                if not made:
                    made.append(build())
                return made[0]

            known = replace(known, build=once)
            self._known[value, dim] = known
        return known

    def _read(self, value: ir.Value, dim: int) -> Unsorted:
        kind, op = self.kinds.get(value), defining(value)
        if isinstance(kind, Sorted) and kind.dim == dim:
            return Unsorted(kind.filled, lambda: value)
        if kind is not None or op is None:
            raise NotSorted
        shape = [self._rows if d == dim else size for d, size in enumerate(shape_of(value))]
        if op.name == "stablehlo.constant":
            return self._of_constant(op, value, shape)
        if op.name == "stablehlo.iota":
            if ir.IntegerAttr(op.attributes["iota_dimension"]).value == dim:
                raise NotSorted
            return Unsorted(None, lambda: _resized_copy(op, shape, []))
        if op.name == "stablehlo.broadcast_in_dim":
            return self._of_broadcast(op, shape, dim)
        if op.name == "stablehlo.compare":
            left, right = (self.same.get(operand, operand) for operand in op.operands)
            is_integer = isinstance(ir.RankedTensorType(left.type).element_type, ir.IntegerType)
            if left == right and is_integer and direction(op) == "EQ":
                return self._everywhere(op, shape, True)
            stated = self._statement_about_keys(op, shape, dim)
            if stated is not None:
                return stated
        if op.name not in ELEMENTWISE:
            raise NotSorted
        parts = [self._part(operand, dim) for operand in op.operands]
        filled = filled_by(op.name, [part.filled for part in parts])
        return Unsorted(filled, lambda: _resized_copy(op, shape, [part.build() for part in parts]))

    def _part(self, operand: ir.Value, dim: int) -> Unsorted:
        """Of an elementwise operation; all rows share one without dimensions."""
        if shape_of(operand):
            return self.by_rows(operand, dim)
        return Unsorted(splat_fill(operand), lambda: operand)

    def _of_constant(self, op: ir.Operation, value: ir.Value, shape: list[int]) -> Unsorted:
        if read_splat(op) is None:
            raise NotSorted
        if list(shape_of(value)) == shape:
            return Unsorted(splat_fill(value), lambda: value)
        element = ir.RankedTensorType(value.type).element_type
        type_ = ir.RankedTensorType.get(shape, element)
        return Unsorted(splat_fill(value), lambda: resized(op, type_))

    def _of_broadcast(self, op: ir.Operation, shape: list[int], dim: int) -> Unsorted:
        source, dims = op.operands[0], dimensions(op, "broadcast_dimensions")
        sizes = shape_of(source)
        if dim not in dims or sizes[dims.index(dim)] == 1:
            filled = splat_fill(source)
            if list(shape_of(op.results[0])) == shape:
                return Unsorted(filled, lambda: op.results[0])
            return Unsorted(filled, lambda: _resized_copy(op, shape, [source]))
        inner = self.by_rows(source, dims.index(dim))
        return Unsorted(inner.filled, lambda: _resized_copy(op, shape, [inner.build()]))

    def _statement_about_keys(
        self, op: ir.Operation, shape: list[int], dim: int
    ) -> Unsorted | None:
        """A comparison of positions with numbers of rows that have a key below p."""
        for side in (0, 1):
            places, numbers = op.operands[side], op.operands[1 - side]
            if coordinate_dim(places) != dim or (direction(op), side) not in _BELOW:
                continue
            source, laid = _laid(numbers)
            # Behind the last row no position is below any count.
            is_below = direction(op) in ("LT", "GT")
            if bounds(source) == (0, 0):  # where no position is below, either
                return self._everywhere(op, shape, not is_below)
            found = None if dim in laid else self._counts.of(source)
            key = self.sort.operands[0]
            keys = frozenset((key, past_barriers(key), self.sort.results[0]))
            if found is not None and follows(found[1], keys):
                build = partial(self._compared, op, shape, side, dim, laid, *found)
                return Unsorted(not is_below, build)
        return None

    def _compared(
        self,
        op: ir.Operation,
        shape: list[int],
        side: int,
        dim: int,
        laid: tuple[int | None, ...],
        first: np.ndarray,
        keys: ir.Value,
    ) -> ir.Value:
        """The key of each row, on the side of its position, compared with the p of each number."""
        of_rows = reshape(keys, (self._rows,))
        element = ir.RankedTensorType(of_rows.type).element_type
        kept = [n for n, d in zip(first.shape, laid, strict=True) if d is not None]
        table = np.array(first.reshape(kept), dtype=f"int{ir.IntegerType(element).width}")
        numbers = ir.DenseElementsAttr.get(table, type=element)  # type: ignore[call-overload]
        limits = stablehlo.ConstantOp(numbers).result
        sides = [
            broadcast(of_rows, shape, (dim,)),
            broadcast(limits, shape, [d for d in laid if d is not None]),
        ]
        return _resized_copy(op, shape, sides[:: -1 if side else 1])

    def _everywhere(self, op: ir.Operation, shape: list[int], holds: bool) -> Unsorted:
        element = ir.RankedTensorType(op.results[0].type).element_type
        type_ = ir.RankedTensorType.get(shape, element)
        return Unsorted(holds, lambda: splat_constant(type_, holds))

    @property
    def _rows(self) -> int:
        return shape_of(self.sort.operands[0])[0]


def _laid(value: ir.Value) -> tuple[ir.Value, tuple[int | None, ...]]:
    """What a value repeats, itself if it is no broadcast, and along which of its dimensions that
    lies: none for dimensions of size 1 that are stretched."""
    dims: tuple[int | None, ...] = tuple(range(len(shape_of(value))))
    while (op := defining(value)) is not None and op.name == "stablehlo.broadcast_in_dim":
        source, inner = op.operands[0], dimensions(op, "broadcast_dimensions")
        sizes = zip(shape_of(source), inner, strict=True)
        dims = tuple(dims[d] if size == shape_of(value)[d] else None for size, d in sizes)
        value = source
    return value, dims


def _resized_copy(op: ir.Operation, shape: list[int], operands: list[ir.Value]) -> ir.Value:
    """The same operation at the insertion point, for other operands, with a result of a shape."""
    copy = op.clone(ip=ir.InsertionPoint.current)
    for number, operand in enumerate(operands):
        copy.operands[number] = operand
    element = ir.RankedTensorType(op.results[0].type).element_type
    copy.results[0].set_type(ir.RankedTensorType.get(shape, element))
    return copy.results[0]
