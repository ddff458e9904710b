"""The choices of `--intra-op`: each restricts the shardings of some tensors, and the solver chooses
the rest.

* `ilp`: no restriction.
* `data`, `zero1`, `zero2`, `zero3`, `mics`, `autodist`: the batch is split, see
  `shardopt.solve.presets.data`.
* `megatron`, `sequence`, `summa-2d`, `2.5d`: weights are split too, see
  `shardopt.solve.presets.tensor`; `3d`: products are cubes, see `shardopt.solve.presets.cube`.
* `context-gather`, `ulysses`, `ring`, and these with `-zero1` to `-zero3`: the sequence is split,
  see `shardopt.solve.presets.context`; `context-gather-megatron` to `ulysses-sequence-zero3`: the
  sequence and weights are, see `shardopt.solve.presets.context_tensor`.
* `tofu`: the best split over one axis after the other, see `shardopt.solve.presets.bisection`.
* `expert`: weights of experts are split, see `shardopt.solve.presets.expert`.
* `megatron-zero1` to `expert-zero3`: and the state as ZeRO does besides, see
  `shardopt.solve.presets.split_state`.
* `heuristic`: every input split along its largest dimension, and that propagated; `shardy`: what
  Shardy's own propagation gives every tensor; see `shardopt.solve.presets.propagated`.
* `replicate`: every operation in full on every device.

As a preset only takes choices away, what the solver makes of it is also an assignment of the
problem without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.presets import bisection, context, cube, data, expert, propagated
from shardopt.solve.presets import tensor as tensor_parallel
from shardopt.solve.presets.base import Axes, InputKinds, Restriction, replicated
from shardopt.solve.presets.context_tensor import context_tensor
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.strategies.strategies import live_axes
from shardopt.support.errors import UserError

__all__ = ["PRESETS", "InputKinds", "Restriction", "restrict", "state_axes"]

Preset = Callable[[IntraOpTables, InputKinds], Restriction]


def restrict(preset: str, tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    """What a preset fixes. Raises UserError for an unknown name and for a preset that does not
    apply to the graph.

    A sharding that the tensor or one tied to it cannot have (its operation is opaque, say, or the
    user demands another) becomes the replicated one or, failing that, is left to the solver. So is
    an operation that no strategy is left for that makes what is fixed for its results."""
    if preset not in PRESETS:
        raise UserError(f"unknown intra-op preset '{preset}'; expected one of {', '.join(PRESETS)}")
    restriction = PRESETS[preset](tables, input_kinds)
    tied = _tied_to(input_kinds.tied)
    fixed: dict[int, Sharding] = {}
    everywhere: dict[int, Sharding] = {}
    for tensor, sharding in restriction.fixed.items():
        group = tied.get(tensor, (tensor,))
        choices = (everywhere.get(tensor, sharding), Sharding.replicated(sharding.rank))
        if possible := [choice for choice in choices if _is_possible(tables, choice, group)]:
            fixed[tensor] = possible[0]
            everywhere.update(dict.fromkeys(group, possible[0]))
    allowed = {
        op: numbers
        for op, numbers in restriction.allowed.items()
        if _makes(tables, op, numbers, everywhere)
    }
    for group in dict.fromkeys(tied.values()):
        for op in _disagreeing(tables, group, allowed):
            del allowed[op]
    return Restriction(fixed, allowed, restriction.transient)


# What splits state along the last axis, and repeats it along the others.
_WEIGHTS_ALONE = frozenset(
    {
        *("megatron", "sequence", "mics"),
        *(f"{t}-{w}" for t in ("context-gather", "ulysses") for w in ("megatron", "sequence")),
    }
)


def state_axes(preset: str, mesh: Mesh) -> Axes:
    """The axes of a mesh over which a preset may split state and its gradients: what it holds of
    them is no less than their share of these."""
    axes = live_axes(mesh)
    if preset in ("data", "replicate"):
        return ()
    if preset in _WEIGHTS_ALONE:
        return axes[-1:]
    return axes


def _tied_to(pairs: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """For each tensor all that are tied to it, directly or through others, and itself."""
    members: dict[int, tuple[int, ...]] = {}
    for first, second in pairs:
        joined = tuple(
            dict.fromkeys((*members.get(first, (first,)), *members.get(second, (second,))))
        )
        members.update(dict.fromkeys(joined, joined))
    return members


def _is_possible(tables: IntraOpTables, sharding: Sharding, tensors: Iterable[int]) -> bool:
    demanded = tables.constraints.allowed
    return all(
        sharding in tables.column(tensor).distinct and sharding in demanded.get(tensor, (sharding,))
        for tensor in tensors
    )


def _makes(
    tables: IntraOpTables, op: int, numbers: Sequence[int], fixed: Mapping[int, Sharding]
) -> bool:
    """Whether a strategy without forbidden axes gives every result the sharding that is fixed or
    demanded for it."""
    demanded = tables.constraints.allowed
    results = [
        (place, t)
        for place, t in enumerate(tables.graph.ops[op].results)
        if t in fixed or t in demanded
    ]
    required = [(place, (fixed[t],) if t in fixed else demanded[t]) for place, t in results]
    strategies = tables.ops[op].strategies
    permitted = (strategies[n] for n in numbers if tables.constraints.permits(op, strategies[n]))
    return any(
        all(s.results[place] in shardings for place, shardings in required) for s in permitted
    )


def _disagreeing(
    tables: IntraOpTables, group: Sequence[int], allowed: Mapping[int, Sequence[int]]
) -> set[int]:
    """Operations to be left to the solver for tied results to have a sharding in common: those that
    may only make whole ones (what a loop starts from, say) if that is enough, else all that make
    one of them."""
    options: dict[int, set[Sharding]] = {}
    for tensor in group:
        op = tables.producers[tensor]
        if op in allowed:
            place = tables.graph.ops[op].results.index(tensor)
            made = {tables.ops[op].strategies[number].results[place] for number in allowed[op]}
            options[op] = options.get(op, made) & made
    if not options or set.intersection(*options.values()):
        return set()
    whole = {op for op, made in options.items() if all(sharding.is_replicated for sharding in made)}
    others = [made for op, made in options.items() if op not in whole]
    return whole if others and set.intersection(*others) else set(options)


def _ilp(tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    return Restriction()


def _replicate(tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    in_full = dict.fromkeys(range(len(tables.graph.ops)), (0,))
    return Restriction(replicated(tables, tables.graph.inputs), in_full)


PRESETS: Mapping[str, Preset] = {
    "ilp": _ilp,
    "data": data.data,
    "zero1": partial(data.zero, 1),
    "zero2": partial(data.zero, 2),
    "zero3": partial(data.zero, 3),
    "mics": data.mics,
    "autodist": data.autodist,
    "megatron": partial(tensor_parallel.pairs, "megatron", 0),
    "megatron-zero1": partial(tensor_parallel.pairs, "megatron", 1),
    "megatron-zero2": partial(tensor_parallel.pairs, "megatron", 2),
    "megatron-zero3": partial(tensor_parallel.pairs, "megatron", 3),
    "sequence": partial(tensor_parallel.pairs, "sequence", 0),
    "sequence-zero1": partial(tensor_parallel.pairs, "sequence", 1),
    "sequence-zero2": partial(tensor_parallel.pairs, "sequence", 2),
    "sequence-zero3": partial(tensor_parallel.pairs, "sequence", 3),
    "summa-2d": partial(tensor_parallel.summa, "summa-2d"),
    "2.5d": partial(tensor_parallel.summa, "2.5d"),
    "3d": cube.cube,
    **{
        f"{method}-zero{stage}" if stage else method: partial(context.context, method, stage)
        for method in ("context-gather", "ulysses", "ring")
        for stage in range(4)
    },
    **{
        f"{tokens}-{weights}" + (f"-zero{stage}" if stage else ""): partial(
            context_tensor, tokens, weights, stage
        )
        for tokens in ("context-gather", "ulysses")
        for weights in ("megatron", "sequence")
        for stage in range(4)
    },
    "expert": expert.expert,
    "expert-zero1": partial(expert.expert_zero, 1),
    "expert-zero2": partial(expert.expert_zero, 2),
    "expert-zero3": partial(expert.expert_zero, 3),
    "tofu": bisection.tofu,
    "heuristic": propagated.heuristic,
    "replicate": _replicate,
    "shardy": propagated.shardy,
}
