"""The methods that Alpa's evaluation compares, as options of the planner.

Every method plans with the same costs, memory, schedule (1F1B) and, unless told otherwise, the
number of layers and microbatches of the authors' plan for the model, so that a difference between
two bars comes from what they may choose."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.alpa.specs import Case
from shardopt.frontend.plans.plan import PlanOptions

# What a method fixes. "shardopt" chooses everything (Alpa's own bars); for the others see the
# paper, section 8.
METHODS: Mapping[str, Mapping[str, object]] = {
    "shardopt": {},
    "intra-only": {"inter_op": "intra-only"},
    "inter-only": {"inter_op": "inter-only"},
    "pp-dp": {"inter_op": "pp-dp"},
    "megatron": {"inter_op": "megatron"},
    "deepspeed": {"inter_op": "deepspeed"},
    "equal-layer": {"inter_op": "equal-layer"},
    "equal-op": {"inter_op": "equal-op"},
}


def options(
    case: Case, method: str, microbatches: int | None = None, layers: int | None = None
) -> PlanOptions:
    """Options of `shardopt plan` for a case. Batch normalisation takes the statistics of a
    microbatch, as in Alpa."""
    return PlanOptions(
        cluster=case.cluster,
        microbatches=microbatches or case.microbatches,
        schedule="1f1b",
        layers=layers or _layers(case, method),
        batch_coupling="per-microbatch" if case.family == "wresnet" else "error",
        **METHODS[method],  # type: ignore[arg-type]
    )


def _layers(case: Case, method: str) -> int:
    """Stages of one device each get equally many layers, and two at least: Alpa recomputes block by
    block, and with one layer a stage all of it would be computed again at once."""
    return (
        case.devices * max(-(-case.layers // case.devices), 2)
        if method == "inter-only"
        else case.layers
    )
