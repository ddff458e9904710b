"""The prediction for a row of measurements: two short plans of its model, stretched to the whole.

Rows that differ only in the number of layers or of microbatches share their short plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from shardopt.measured.case import Case
from shardopt.measured.fsdp2 import beside
from shardopt.measured.layout import RowLayout, RowRecomputation
from shardopt.measured.short_plan import ShortCase, ShortPlan, short_plan
from shardopt.measured.stretch import Pair, Shape, StepPrediction, predict
from shardopt.models.computing import Recomputed
from shardopt.models.specs import LlamaSpec, block_layers

# First, one between, last.
_STAGES_THAT_DIFFER = 3
# Of what a row leaves open: larger microbatches than these take much longer to plan for nothing, as
# products are as large as they need to be.
_MOST_EXAMPLES = 16
# Of a loop: as many as make one sum in 32 bits behind it cheaper than one in 8 for each of them.
_MICROBATCHES = 8
# Of a device's memory, for plans that the solver makes: the planner's default.
_FRACTION = 0.9


def prediction(case: Case) -> StepPrediction:
    """Of the plan that the row states. What it leaves open is chosen as who measured it would: of
    recomputation the least that fits into memory, of microbatches the one with the shortest step
    that fits (or, where none fits, the one that lacks least). Raises UserError where a method does
    not apply to the model."""
    memory = case.machine.device.memory_bytes
    outcomes = [
        _with_least_recomputation(case, layout) for layout in open_microbatches(case.layout)
    ]
    fitting = [each for each in outcomes if each.memory_bytes <= memory]
    if not fitting:
        return min(outcomes, key=lambda each: each.memory_bytes)
    return min(fitting, key=lambda each: each.step_seconds)


def open_microbatches(layout: RowLayout) -> Iterator[RowLayout]:
    """Powers of two, where the row states none; not fewer microbatches than meshes, which would
    wait for each other."""
    if layout.microbatch is not None:
        yield layout
        return
    share, size = layout.batch // layout.replicas, 1
    while size <= _MOST_EXAMPLES and share % size == 0 and (size == 1 or share >= size * layout.pp):
        yield replace(layout, microbatch=size)
        size *= 2


def _with_least_recomputation(case: Case, layout: RowLayout) -> StepPrediction:
    if layout.recomputation is not None:
        return _prediction(case, layout, layout.recomputation)
    for remedy in (RowRecomputation(), *layout.between):
        outcome = _prediction(case, layout, remedy)
        if outcome.memory_bytes <= case.machine.device.memory_bytes:
            return outcome
    return _prediction(case, layout, layout.full)


def prediction_within(case: Case, fraction: float) -> StepPrediction:
    """Of the stated plan where it has to fit into a fraction of the memory: methods leave it to the
    planner what is gathered or made twice. The model is planned as a whole, as what makes it fit is
    not alike in all blocks. Raises UserError where it does not fit."""
    layout = next(open_microbatches(case.layout))
    return _prediction(case, layout, layout.recomputation or RowRecomputation(), fraction)


def prediction_recomputing(case: Case, recomputation: RowRecomputation) -> StepPrediction:
    """Of the stated plan with something else computed again. Raises UserError where the method does
    not apply to the model."""
    return _prediction(case, next(open_microbatches(case.layout)), recomputation)


def whole_case(case: Case) -> ShortCase:
    """All blocks of a row on its stages, as the row states them."""
    layout = next(open_microbatches(case.layout))
    blocks = case.spec.layers // (layout.stages * block_layers(case.spec))
    recomputation = layout.recomputation or RowRecomputation()
    return _short(case, layout, recomputation, layout.stages, blocks)


def _prediction(
    case: Case, layout: RowLayout, recomputation: RowRecomputation, fraction: float = 0.0
) -> StepPrediction:
    blocks = case.spec.layers // (layout.stages * block_layers(case.spec))
    if layout.intra_op == "ilp":  # whether a stated plan fits is for the reader; this one has to
        fraction = fraction or _FRACTION
    stages, counts = _short_stages(layout, case.machine.devices_per_host), (blocks, blocks)
    if not fraction:
        counts = short_blocks(stages, blocks, layout.intra_op)
    first, second = (
        _planned(replace(_short(case, layout, recomputation, stages, n), memory_fraction=fraction))
        for n in counts
    )
    host = case.machine.devices_per_host
    share = case.machine.overlap_share if case.sums_early else 0.0
    waits = (share, case.awaits_messages, case.sums_together and layout.splits_batch_alone)
    shape = Shape(layout.pp, layout.stages, blocks, layout.width, host, *waits)
    plan = predict(Pair(first, second), shape, layout.schedule, layout.microbatches)
    return _with_what_is_beside(case, layout, recomputation, plan)


def _with_what_is_beside(
    case: Case, layout: RowLayout, recomputation: RowRecomputation, plan: StepPrediction
) -> StepPrediction:
    """Stages of a pipeline keep their weights whole from one microbatch to the next, which no plan
    does: for those, nothing is known to be beside."""
    if not case.by_fsdp2 or layout.stages > 1 or not isinstance(case.spec, LlamaSpec):
        return plan
    more = beside(case.spec, case.how, case.machine.device, layout, recomputation)
    return StepPrediction(plan.step_seconds + more.seconds, plan.memory_bytes + round(more.bytes))


def short_blocks(stages: int, blocks: int, intra_op: str) -> tuple[int, int]:
    """Blocks a stage of the two short plans. Where one stage has all, its first block begins what
    its last one ends, so that one block alone is like no block of many. What the solver chooses for
    few blocks it need not choose for many: then the plan is that of the whole."""
    if intra_op == "ilp":
        return blocks, blocks
    if stages == 1 and blocks > 2:
        return 2, 3
    return min(1, blocks), min(2, blocks)


def _short_stages(layout: RowLayout, host: int) -> int:
    """Enough to have all kinds of stages, and neighbours on one host as well as on two if the
    pipeline has both; the last host is full, or the only one."""
    width, enough = layout.width, _STAGES_THAT_DIFFER
    if width < host < width * layout.pp:
        enough = max(enough, 2 * host // width)
    return min(layout.stages, enough)


def _short(
    case: Case, layout: RowLayout, recomputation: RowRecomputation, stages: int, blocks: int
) -> ShortCase:
    assert layout.microbatch is not None, "the caller fills in what is open"
    alone = layout.microbatches == 1 and not case.buffers_gradients
    microbatches = 1 if alone else _MICROBATCHES
    spec = replace(
        case.spec,
        layers=stages * blocks * block_layers(case.spec),
        batch=microbatches * layout.replicas * layout.microbatch,
    )
    return ShortCase(
        spec=spec,
        dtype=case.dtype,
        how=replace(
            case.how,
            recomputed=_within(case, recomputation, stages),
            carries_copies=case.how.carries_copies or layout.splits_optimizer_alone,
        ),
        machine=case.machine,
        stages=stages,
        shape=layout.shape,
        intra_op=layout.intra_op,
        recompute=recomputation.stages,
        microbatches=microbatches,
    )


def _within(case: Case, recomputation: RowRecomputation, stages: int) -> Recomputed:
    """What is recomputed in a block. Kernels of attention keep queries, keys, values and results
    for their backward pass, and never scores. Where that pass is in another fragment of a pipeline,
    the model has to say so."""
    kernels = case.machine.device.kernels
    fused = kernels is not None and kernels.attention is not None
    apart = stages > 1 and recomputation == RowRecomputation()
    return "attention" if fused and apart else recomputation.within


@lru_cache(maxsize=512)
def _planned(case: ShortCase) -> ShortPlan:
    return short_plan(case)
