"""Where the batch flows through a step, and what that makes of its inputs: all that data-parallel
presets know.

The batch starts on a dimension of the batch inputs and follows the factors of the sharding rules.
An operation with such a factor is *batched*; one that contracts the factor *sums* over the batch.
What depends on the batch without carrying it (gradients, the loss, batch statistics) is either used
by batched operations again, as batch statistics are, or only by the update: that tells gradients
and optimizer state from activations and weights, whatever the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardopt.graph.op_graph import Island, Op, OpGraph
from shardopt.solve.presets.base import InputKinds
from shardopt.solve.presets.slots import Slot, find_slots, leading_factor
from shardopt.solve.sharding.strategies.factors import shardable_factors
from shardopt.support.errors import UserError

# What cuts the batch into microbatches: the value of one microbatch is behind these.
_BATCH_CUTTING = frozenset({"dynamic_slice", "reshape", "transpose"})


@dataclass(frozen=True)
class BatchFlow:
    """`dims[t]` is the dimension on which tensor t carries the batch, `factors[k]` the factor that
    carries it through operation k, and `depends[t]` whether the tensor depends on the batch at all.

    `seeds` are the tensors (with their dimension) where the batch starts, `extent` its size. Of the
    inputs, `weights` are those that batched operations use, directly or not; `slots` (optimizer
    state) are state that only the update reads. `gradients` are the operations that sum over the
    batch for the update alone, `update` those that depend on the batch and have neither the factor
    nor a batched operation behind them. `slots_of[w]` are the slots of a weight."""

    seeds: Mapping[int, int]
    extent: int
    dims: tuple[int | None, ...]
    factors: tuple[int | None, ...]
    depends: tuple[bool, ...]
    weights: frozenset[int]
    slots: frozenset[int]
    gradients: frozenset[int]
    update: frozenset[int]
    slots_of: Mapping[int, tuple[Slot, ...]]


def follow_batch(graph: OpGraph, input_kinds: InputKinds, preset: str) -> BatchFlow:
    """Raises UserError when no input is known to hold the batch."""
    seeds = _seeds(graph, input_kinds)
    # Microbatches that only other meshes read do not have to divide here.
    seeds = {tensor: seeds[tensor] for tensor in seeds if _is_read(graph, tensor)} or seeds
    if not seeds:
        reason = (
            f": {input_kinds.no_batch}; name them with batch-args"
            if input_kinds.no_batch
            else (" (see batch-args)")
        )
        raise UserError(
            f"preset '{preset}' splits the batch: expected batch arguments, found none{reason}"
        )
    return classified(graph, input_kinds, seeds, *_spread(graph, seeds))


def classified(
    graph: OpGraph,
    input_kinds: InputKinds,
    seeds: Mapping[int, int],
    dims: Sequence[int | None],
    factors: Sequence[int | None],
) -> BatchFlow:
    """What follows from where the batch lies, for inputs and for the operations behind the
    batch."""
    depends = [
        tensor in input_kinds.batch or tensor in input_kinds.received
        for tensor in range(len(graph.tensors))
    ]
    for op in graph.ops:
        for result in op.results:
            depends[result] = any(depends[operand] for operand in op.operands)
    feeds = _feeding(graph, factors)
    batch = {*input_kinds.batch, *input_kinds.received}
    weights = {k for k in graph.inputs if feeds[k] and k not in batch and _is_number(graph, k)}
    slots = {k for k in input_kinds.state - weights if graph.tensors[k].shape and not feeds[k]}
    late = [
        k for k, op in enumerate(graph.ops) if op.results and not any(feeds[r] for r in op.results)
    ]
    return BatchFlow(
        seeds=seeds,
        extent=min(graph.tensors[tensor].shape[dim] for tensor, dim in seeds.items()),
        dims=tuple(dims),
        factors=tuple(factors),
        depends=tuple(depends),
        weights=frozenset(weights),
        slots=frozenset(slots),
        gradients=frozenset(k for k in late if sums_over_batch(graph.ops[k], factors[k])),
        update=frozenset(
            k
            for k in late
            if factors[k] is None
            and graph.ops[k].island is None
            and depends[graph.ops[k].results[0]]
        ),
        slots_of={
            weight: find_slots(graph, after, slots, factors)
            for weight, after in input_kinds.tied
            if weight in weights
        },
    )


def follow_between(
    graphs: Sequence[OpGraph],
    input_kinds: Sequence[InputKinds],
    sources: Sequence[Mapping[int, tuple[int, int]]],
) -> tuple[InputKinds, ...]:
    """InputKinds with `received` filled in: the batch goes on where another mesh sends a value that
    carries it.

    `sources[m]` says for the inputs of graph m that arrive from elsewhere which tensor of which
    graph they are."""
    kinds = list(input_kinds)
    changed = True
    while changed:  # each round finds a value more, or is the last
        carried = [
            _spread(graph, _seeds(graph, known))[0]
            for graph, known in zip(graphs, kinds, strict=True)
        ]
        changed = False
        for number, arriving in enumerate(sources):
            dims = {tensor: carried[mesh][sent] for tensor, (mesh, sent) in arriving.items()}
            received = {tensor: dim for tensor, dim in dims.items() if dim is not None}
            changed |= received != kinds[number].received
            kinds[number] = replace(kinds[number], received=received)
    return tuple(kinds)


def batch_dims(graph: OpGraph, input_kinds: InputKinds) -> tuple[int | None, ...]:
    """For each tensor the dimension that carries the batch."""
    return tuple(_spread(graph, _seeds(graph, input_kinds))[0])


def _seeds(graph: OpGraph, input_kinds: InputKinds) -> dict[int, int]:
    """Where the batch starts: (a slice of) a batch argument, or a value that arrives with it."""
    cut = dict(
        seed
        for argument, dim in sorted(input_kinds.batch.items())
        for seed in _microbatches(graph, argument, dim)
    )
    for tensor, dim in input_kinds.received.items():
        # Blocks of microbatches, of which the loop takes one after the other.
        are_blocks = {op.name for op in _readers(graph, tensor)} == {"dynamic_slice"}
        cut.update(_microbatches(graph, tensor, dim) if are_blocks else [(tensor, dim)])
    return cut


def _readers(graph: OpGraph, tensor: int) -> list[Op]:
    return [op for op in graph.ops if tensor in op.operands]


def _is_read(graph: OpGraph, tensor: int) -> bool:
    return tensor in graph.inputs or bool(_readers(graph, tensor))


def _spread(graph: OpGraph, seeds: Mapping[int, int]) -> tuple[list[int | None], list[int | None]]:
    """For each tensor the dimension, and for each operation the factor, that carries the batch."""
    dims: list[int | None] = [seeds.get(tensor) for tensor in range(len(graph.tensors))]
    factors: list[int | None] = []
    for op in graph.ops:
        factor = carried_factor(graph, op, dims)
        factors.append(factor)
        for position, result in enumerate(op.results):
            if factor is not None and op.rule is not None and result not in seeds:
                dims[result] = dim_led_by(op.rule.results[position], op.rule.sizes, factor)
            elif op.island is not None:
                dims[result] = _dim_through(op, op.island, position, dims)
    return dims, factors


def _dim_through(op: Op, island: Island, position: int, dims: Sequence[int | None]) -> int | None:
    """The dimension of a result that an island splits by the axes by which it splits the batch."""
    axes = {
        island.operands[place][dim]
        for place, tensor in enumerate(op.operands)
        if (dim := dims[tensor]) is not None
    }
    axes.discard(())
    split = enumerate(island.results[position])
    return next((dim for dim, its in split if its in axes), None)


def sums_over_batch(op: Op, factor: int | None) -> bool:
    return factor is not None and op.rule is not None and factor in op.rule.reduction


def _microbatches(graph: OpGraph, argument: int, dim: int) -> list[tuple[int, int]]:
    """(tensor, batch dimension) to split for a batch argument: itself, or in a loop over
    microbatches its slices."""
    places = []
    pending = [argument] if any(op.repeat > 1 for op in graph.ops) else []
    while pending:
        tensor = pending.pop()
        cuts = [op for op in graph.ops if op.operands[:1] == (tensor,) and _cuts_batch(op)]
        pending += [op.results[0] for op in reversed(cuts)]
        if not cuts and tensor != argument:
            shape = graph.tensors[tensor].shape
            # Behind the cut the rows of a microbatch are the first dimension with more than one
            # element.
            places.append((tensor, next((d for d, extent in enumerate(shape) if extent > 1), 0)))
    return places or [(argument, dim)]


def _cuts_batch(op: Op) -> bool:
    """Ahead of the loop slices cut it, too, where several pipelines share it."""
    return op.name in _BATCH_CUTTING or (op.name == "slice" and op.repeat == 1)


def carried_factor(graph: OpGraph, op: Op, dims: Sequence[int | None]) -> int | None:
    """The factor on which what lies along `dims` (the batch, say) enters, of the largest operand
    where they differ; None if it cannot be split."""
    if op.rule is None:
        return None
    usable = set(shardable_factors(op))
    candidates = [
        (graph.tensors[tensor].size_bytes, -position, factor)
        for position, (tensor, mapping) in enumerate(
            zip(op.operands, op.rule.operands, strict=False)
        )
        if (dim := dims[tensor]) is not None
        and (factor := leading_factor(mapping[dim], op.rule.sizes)) is not None
        and factor in usable
    ]
    return max(candidates)[2] if candidates else None


def dim_led_by(
    mapping: tuple[tuple[int, ...], ...], sizes: tuple[int, ...], factor: int
) -> int | None:
    return next(
        (dim for dim, factors in enumerate(mapping) if leading_factor(factors, sizes) == factor),
        None,
    )


def _feeding(graph: OpGraph, factors: Sequence[int | None]) -> list[bool]:
    """For each tensor whether a batched operation that does not merely sum it up is reached from
    it."""
    feeds = [False] * len(graph.tensors)
    for op, factor in zip(reversed(graph.ops), reversed(factors), strict=True):
        if any(feeds[result] for result in op.results) or (
            factor is not None and not sums_over_batch(op, factor)
        ):
            for operand in op.operands:
                feeds[operand] = True
    return feeds


def _is_number(graph: OpGraph, tensor: int) -> bool:
    """Whether a value can be a weight: random keys, counters and flags are none."""
    return bool(graph.tensors[tensor].shape) and "f" in graph.tensors[tensor].dtype
