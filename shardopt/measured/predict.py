"""The prediction for a row of measurements: two short plans of its model, stretched to the whole.

Rows that differ only in the number of layers or of microbatches share their short plans."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shardopt.measured.case import Case, Layout
from shardopt.measured.short_plan import ShortCase, ShortPlan, short_plan
from shardopt.measured.stretch import Pair, Prediction, Shape, predict
from shardopt.models.specs import block_layers

# First, one between, last.
_STAGES_THAT_DIFFER = 3


def prediction(case: Case) -> Prediction:
    """Of the plan that the row states; what it leaves open about recomputation is the least that
    fits into memory. Raises UserError where a method does not apply to the model."""
    layout = case.layout
    if layout.recompute:
        return _prediction(case, layout)
    none = _prediction(case, replace(layout, recompute="none"))
    if none.memory_bytes <= case.machine.device.memory_bytes:
        return none
    return _prediction(case, replace(layout, recompute="layer"))


def _prediction(case: Case, layout: Layout) -> Prediction:
    blocks = case.spec.layers // (layout.stages * block_layers(case.spec))
    stages = _short_stages(layout, case.machine.devices_per_host)
    first, second = (_short(case, layout, stages, n) for n in short_blocks(stages, blocks))
    shape = Shape(
        layout.pp, layout.stages, blocks, layout.dp * layout.tp, case.machine.devices_per_host
    )
    return predict(Pair(first, second), shape, layout.schedule, layout.microbatches)


def short_blocks(stages: int, blocks: int) -> tuple[int, int]:
    """Blocks a stage of the two short plans. Where one stage has all, its first block begins what
    its last one ends, so that one block alone is like no block of many."""
    if stages == 1 and blocks > 2:
        return 2, 3
    return min(1, blocks), min(2, blocks)


def _short_stages(layout: Layout, host: int) -> int:
    """Enough to have all kinds of stages, and neighbours on one host as well as on two if the
    pipeline has both; the last host is full, or the only one."""
    width, enough = layout.dp * layout.tp, _STAGES_THAT_DIFFER
    if width < host < width * layout.pp:
        enough = max(enough, 2 * host // width)
    return min(layout.stages, enough)


def _short(case: Case, layout: Layout, stages: int, blocks: int) -> ShortPlan:
    # Two microbatches make a loop as any number does.
    microbatches = min(layout.microbatches, 2)
    spec = replace(
        case.spec,
        layers=stages * blocks * block_layers(case.spec),
        batch=microbatches * layout.dp * layout.microbatch,
    )
    return _planned(
        ShortCase(
            spec,
            case.dtype,
            case.machine,
            stages,
            (layout.dp, layout.tp),
            layout.intra_op,
            layout.recompute,
            microbatches,
        )
    )


@lru_cache(maxsize=512)
def _planned(case: ShortCase) -> ShortPlan:
    return short_plan(case)
