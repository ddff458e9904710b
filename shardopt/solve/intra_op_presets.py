"""The choices of `--intra-op`: each restricts the shardings of some tensors, and the solver chooses the rest.

* `ilp`: no restriction.
* `replicate`: every operation in full on every device.
* `data`: state (weights, optimizer state) whole, the batch split.
* `heuristic`: every input split along its largest dimension, axis by axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from shardopt.cost.errors import UserError
from shardopt.cost.graph import OpGraph
from shardopt.cost.mesh import Mesh, Sharding
from shardopt.solve.intra_op import IntraOpTables
from shardopt.solve.strategies import live_axes

# What cuts the batch into microbatches: the value of one microbatch is behind these.
_BATCH_CUTTING = frozenset({"dynamic_slice", "reshape", "transpose"})


@dataclass(frozen=True)
class Roles:
    """What the presets need to know of a graph: inputs that hold state, inputs that hold the batch with the dimension
    it lies on, and the pairs that must agree."""

    state: Set[int] = frozenset()
    batch: Mapping[int, int] = field(default_factory=dict)
    tied: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Restriction:
    """Tensors with a given sharding, and operations with the numbers of the strategies they may take."""

    fixed: Mapping[int, Sharding] = field(default_factory=dict)
    allowed: Mapping[int, Sequence[int]] = field(default_factory=dict)


def restrict(preset: str, tables: IntraOpTables, roles: Roles) -> Restriction:
    """What a preset fixes. Raises UserError for an unknown name.

    A sharding that the tensor or one tied to it cannot have (its operation is opaque, say) becomes the replicated one.
    """
    if preset not in PRESETS:
        raise UserError(f"unknown intra-op preset '{preset}'; expected one of {', '.join(PRESETS)}")
    wanted = PRESETS[preset](tables, roles)
    tied = _tied_to(roles.tied)
    possible = {tensor: _possible(tables, s, tied.get(tensor, (tensor,))) for tensor, s in wanted.fixed.items()}
    return Restriction(possible, wanted.allowed)


def _tied_to(pairs: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """For each tensor all that are tied to it, directly or through others, and itself."""
    members: dict[int, tuple[int, ...]] = {}
    for first, second in pairs:
        joined = tuple(dict.fromkeys((*members.get(first, (first,)), *members.get(second, (second,)))))
        members.update(dict.fromkeys(joined, joined))
    return members


def _possible(tables: IntraOpTables, sharding: Sharding, tensors: Iterable[int]) -> Sharding:
    possible = all(sharding in tables.column(tensor).distinct for tensor in tensors)
    return sharding if possible else Sharding.replicated(sharding.rank)


def _ilp(tables: IntraOpTables, roles: Roles) -> Restriction:
    return Restriction()


def _replicate(tables: IntraOpTables, roles: Roles) -> Restriction:
    in_full = dict.fromkeys(range(len(tables.graph.ops)), (0,))
    return Restriction(_replicated(tables.graph, tables.graph.inputs), in_full)


def _data(tables: IntraOpTables, roles: Roles) -> Restriction:
    fixed = _replicated(tables.graph, sorted(roles.state))
    for argument, dim in sorted(roles.batch.items()):
        for tensor, place in _microbatches(tables.graph, argument, dim):
            shape = tables.graph.tensors[tensor].shape
            fixed[tensor] = split_greedily(tables.mesh, shape, lambda _, place=place: [place])  # type: ignore[misc]
    return Restriction(fixed)


def _microbatches(graph: OpGraph, argument: int, dim: int) -> list[tuple[int, int]]:
    """(tensor, batch dimension) to split for a batch argument: itself, or in a loop over microbatches its slices."""
    found = []
    pending = [argument] if any(op.repeat > 1 for op in graph.ops) else []
    while pending:
        tensor = pending.pop()
        cuts = [op for op in graph.ops if op.operands[:1] == (tensor,) and op.name in _BATCH_CUTTING]
        pending += [op.results[0] for op in reversed(cuts)]
        if not cuts and tensor != argument:
            shape = graph.tensors[tensor].shape
            found.append((tensor, next((d for d, extent in enumerate(shape) if extent > 1), 0)))
    return found or [(argument, dim)]


def _heuristic(tables: IntraOpTables, roles: Roles) -> Restriction:
    tensors = tables.graph.tensors
    return Restriction({k: split_greedily(tables.mesh, tensors[k].shape, _largest) for k in tables.graph.inputs})


PRESETS: Mapping[str, Callable[[IntraOpTables, Roles], Restriction]] = {
    "ilp": _ilp,
    "data": _data,
    "heuristic": _heuristic,
    "replicate": _replicate,
}


def _replicated(graph: OpGraph, tensors: Iterable[int]) -> dict[int, Sharding]:
    return {k: Sharding.replicated(len(graph.tensors[k].shape)) for k in tensors}


def split_greedily(mesh: Mesh, shape: tuple[int, ...], order: Callable[[tuple[int, ...]], Iterable[int]]) -> Sharding:
    """Give each axis in turn to the first dimension, in `order` of the local shape, that it divides."""
    dims: list[tuple[str, ...]] = [()] * len(shape)
    local = list(shape)
    for axis in live_axes(mesh):
        size = mesh.axis_size(axis)
        place = next((d for d in order(tuple(local)) if d < len(local) and local[d] % size == 0), None)
        if place is not None:
            dims[place] = (*dims[place], axis)
            local[place] //= size
    return Sharding(tuple(dims))


def _largest(local: tuple[int, ...]) -> Iterable[int]:
    return sorted(range(len(local)), key=lambda dim: -local[dim])
