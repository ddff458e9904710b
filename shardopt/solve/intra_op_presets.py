"""The choices of `--intra-op`: each restricts the shardings of some tensors, and the solver chooses the rest.

* `ilp`: no restriction.
* `replicate`: every tensor whole on every device.
* `data`: state (weights, optimizer state) whole, batch inputs split along their leading dimension.
* `heuristic`: every input split along its largest dimension, axis by axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from shardopt.cost.errors import UserError
from shardopt.cost.mesh import Mesh, Sharding
from shardopt.solve.intra_op import IntraOpTables
from shardopt.solve.strategies import live_axes


@dataclass(frozen=True)
class Roles:
    """What the presets need to know of a graph: inputs that hold state, inputs that hold the batch, and the pairs
    that must agree."""

    state: Set[int]
    batch: Set[int]
    tied: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Restriction:
    """Tensors with a given sharding, and operations that every device runs in full."""

    fixed: Mapping[int, Sharding] = field(default_factory=dict)
    whole: Sequence[int] = ()


def restrict(preset: str, tables: IntraOpTables, roles: Roles) -> Restriction:
    """What a preset fixes. Raises UserError for an unknown name.

    A sharding that a tied tensor cannot have (its operation is opaque, say) is replaced by the replicated one.
    """
    if preset not in PRESETS:
        raise UserError(f"unknown intra-op preset '{preset}'; expected one of {', '.join(PRESETS)}")
    wanted = PRESETS[preset](tables, roles)
    partners = _partners(roles.tied)
    possible = {tensor: _possible(tables, s, partners.get(tensor, ())) for tensor, s in wanted.fixed.items()}
    return Restriction(possible, wanted.whole)


def _partners(tied: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """All tensors tied to each tensor, directly or through others."""
    members: dict[int, tuple[int, ...]] = {}
    for first, second in tied:
        joined = tuple(dict.fromkeys((*members.get(first, (first,)), *members.get(second, (second,)))))
        members.update(dict.fromkeys(joined, joined))
    return members


def _possible(tables: IntraOpTables, sharding: Sharding, partners: Iterable[int]) -> Sharding:
    possible = all(sharding in tables.column(partner).distinct for partner in partners)
    return sharding if possible else Sharding.replicated(sharding.rank)


def _ilp(tables: IntraOpTables, roles: Roles) -> Restriction:
    return Restriction()


def _replicate(tables: IntraOpTables, roles: Roles) -> Restriction:
    replicated = {k: Sharding.replicated(len(tables.graph.tensors[k].shape)) for k in tables.graph.inputs}
    return Restriction(replicated, range(len(tables.graph.ops)))


def _data(tables: IntraOpTables, roles: Roles) -> Restriction:
    tensors = tables.graph.tensors
    fixed = {k: Sharding.replicated(len(tensors[k].shape)) for k in sorted(roles.state)}
    fixed |= {k: split_greedily(tables.mesh, tensors[k].shape, _leading) for k in sorted(roles.batch)}
    return Restriction(fixed)


def _heuristic(tables: IntraOpTables, roles: Roles) -> Restriction:
    tensors = tables.graph.tensors
    return Restriction({k: split_greedily(tables.mesh, tensors[k].shape, _largest) for k in tables.graph.inputs})


PRESETS:
        raise UserError(f"unknown intra-op preset '{preset}'; expected one of {', '.join(PRESETS)}")
    wanted = PRESETS[preset](tables, roles)
    partners = _partners(roles.tied)
    possible = {tensor: _possible(tables, s, partners.get(tensor, ())) for tensor, s in wanted.fixed.items()}
    return Restriction(possible, wanted.whole)


def _partners(tied: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """All tensors tied to each tensor, directly or through others."""
    members: dict[int, tuple[int, ...]] = {}
    for first, second in tied:
        joined = tuple(dict.fromkeys((*members.get(first, (first,)), *members.get(second, (second,)))))
        members.update(dict.fromkeys(joined, joined))
    return members


def _possible(tables: IntraOpTables, sharding: Sharding, partners: Iterable[int]) -> Sharding:
    possible = all(sharding in tables.column(partner).distinct for partner in partners)
    return sharding if possible else Sharding.replicated(sharding.rank)


def _ilp(tables: IntraOpTables, roles: Roles) -> Fixed:
    return {}


def _replicate(tables: IntraOpTables, roles: Roles) -> Fixed:
    return {k: Sharding.replicated(len(tensor.shape)) for k, tensor in enumerate(tables.graph.tensors)}


def _data(tables: IntraOpTables, roles: Roles) -> Fixed:
    tensors = tables.graph.tensors
    fixed = {k: Sharding.replicated(len(tensors[k].shape)) for k in sorted(roles.state)}
    fixed |= {k: split_greedily(tables.mesh, tensors[k].shape, _leading) for k in sorted(roles.batch)}
    return fixed


def _heuristic(tables: IntraOpTables, roles: Roles) -> Fixed:
    tensors = tables.graph.tensors
    return {k: split_greedily(tables.mesh, tensors[k].shape, _largest) for k in tables.graph.inputs}


PRESETS: Mapping[str, Callable[[IntraOpTables, Roles], Restriction]] = {
    "ilp": _ilp,
    "replicate": _replicate,
    "data": _data,
    "heuristic": _heuristic,
}


def split_greedily(
    mesh: Mesh, shape: tuple[int, ...], order: Callable[[tuple[int, ...]], Iterable[int]]
) -> Sharding:
    """Give each axis in turn to the first dimension, in `order` of the local shape, that it divides."""
    dims: list[tuple[str, ...]] = [()] * len(shape)
    local = list(shape)
    for axis in live_axes(mesh):
        size = mesh.axis_size(axis)
        place = next((d for d in order(tuple(local)) if local[d] % size == 0), None)
        if place is not None:
            dims[place] = (*dims[place], axis)
            local[place] //= size
    return Sharding(tuple(dims))


def _leading(local: tuple[int, ...]) -> Iterable[int]:
    return range(min(len(local), 1))


def _largest(local: tuple[int, ...]) -> Iterable[int]:
    return sorted(range(len(local)), key=lambda d: -local[d])
