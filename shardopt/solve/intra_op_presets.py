"""The choices of `--intra-op`: each restricts the shardings of some tensors, and the solver chooses the rest.

* `ilp`: no restriction.
* `data`, `zero1`, `zero2`, `zero3`, `mics`: the batch is split, see `shardopt.solve.preset_data`.
* `megatron`, `sequence`, `summa-2d`: weights are split too, see `shardopt.solve.preset_tensor`.
* `expert`: weights of experts are split, see `shardopt.solve.preset_expert`.
* `heuristic`: every input split along its largest dimension, axis by axis.
* `replicate`: every operation in full on every device.

As a preset only takes choices away, what the solver makes of it is also an assignment of the problem without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from shardopt.cost.errors import UserError
from shardopt.cost.mesh import Sharding
from shardopt.solve import preset_data, preset_expert, preset_tensor
from shardopt.solve.intra_op import IntraOpTables
from shardopt.solve.preset_base import Restriction, Roles, largest, replicated, split_greedily

__all__ = ["PRESETS", "Restriction", "Roles", "restrict", "split_greedily"]

Preset = Callable[[IntraOpTables, Roles], Restriction]


def restrict(preset: str, tables: IntraOpTables, roles: Roles) -> Restriction:
    """What a preset fixes. Raises UserError for an unknown name and for a preset that does not apply to the graph.

    A sharding that the tensor or one tied to it cannot have (its operation is opaque, say) becomes the replicated one,
    and an operation that makes a tensor of fixed sharding is not also limited to strategies that make another.
    What the user constrains is left to the user.
    """
    if preset not in PRESETS:
        raise UserError(f"unknown intra-op preset '{preset}'; expected one of {', '.join(PRESETS)}")
    wanted = PRESETS[preset](tables, roles)
    tied, constraints = _tied_to(roles.tied), tables.constraints
    fixed = {
        tensor: _possible(tables, s, tied.get(tensor, (tensor,)))
        for tensor, s in wanted.fixed.items()
        if constraints.allowed.keys().isdisjoint(tied.get(tensor, (tensor,)))
    }
    everywhere = {other: sharding for tensor, sharding in fixed.items() for other in tied.get(tensor, (tensor,))}
    allowed = {
        op: numbers
        for op, numbers in wanted.allowed.items()
        if _makes(tables, op, numbers, everywhere) and not _is_constrained(tables, op)
    }
    return Restriction(fixed, allowed)


def _is_constrained(tables: IntraOpTables, op: int) -> bool:
    constraints = tables.constraints
    return op in constraints.forbidden or any(t in constraints.allowed for t in tables.graph.ops[op].results)


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


def _makes(tables: IntraOpTables, op: int, numbers: Sequence[int], fixed: Mapping[int, Sharding]) -> bool:
    """Whether one of the strategies gives every result the sharding that is fixed for it."""
    wanted = [(place, fixed[t]) for place, t in enumerate(tables.graph.ops[op].results) if t in fixed]
    strategies = tables.ops[op].strategies
    return any(all(strategies[n].results[place] == sharding for place, sharding in wanted) for n in numbers)


def _ilp(tables: IntraOpTables, roles: Roles) -> Restriction:
    return Restriction()


def _replicate(tables: IntraOpTables, roles: Roles) -> Restriction:
    in_full = dict.fromkeys(range(len(tables.graph.ops)), (0,))
    return Restriction(replicated(tables, tables.graph.inputs), in_full)


def _heuristic(tables: IntraOpTables, roles: Roles) -> Restriction:
    tensors = tables.graph.tensors
    return Restriction({k: split_greedily(tables.mesh, tensors[k].shape, largest) for k in tables.graph.inputs})


PRESETS: Mapping[str, Preset] = {
    "ilp": _ilp,
    "data": preset_data.data,
    "zero1": preset_data.zero1,
    "zero2": preset_data.zero2,
    "zero3": preset_data.zero3,
    "mics": preset_data.mics,
    "megatron": preset_tensor.megatron,
    "sequence": preset_tensor.sequence,
    "summa-2d": preset_tensor.summa_2d,
    "expert": preset_expert.expert,
    "heuristic": _heuristic,
    "replicate": _replicate,
}
