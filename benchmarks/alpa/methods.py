"""The methods that Alpa's evaluation compares, as options of the planner.

Every method plans with the same costs, memory, schedule (1F1B) and, unless told otherwise, the
number of layers and microbatches of the authors' plan for the model, so that a difference between
two bars comes from what they may choose. Only sharding alone has microbatches, and a logical shape
of its devices, of its own: those of the authors' runs.

GPT and mixtures of experts compute as in the artifact, which calls the forward pass of every block
again (`automatic_remat` in its alpa/pipeline_parallel/layer_construction.py, with as many parts as
blocks), whatever stages they end up in. So their steps do, and nothing else is computed again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd, lcm

from benchmarks.alpa.specs import SHARDED_ALONE, Case
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.measured.frameworks import BY_ALPA
from shardopt.models.computing import PLAIN

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


def step(case: Case) -> bytes:
    """The training step of a case, as bytecode."""
    from shardopt.models.build import bytecode

    return bytecode(case.spec, how=replace(BY_ALPA, recomputed="whole") if _reruns(case) else PLAIN)


def _reruns(case: Case) -> bool:
    """Whether the step itself computes again what is computed again."""
    return case.family != "wresnet"


def options(
    case: Case, method: str, microbatches: int | None = None, layers: int | None = None
) -> PlanOptions:
    """Options of `shardopt plan` for a case. Batch normalisation takes the statistics of a
    microbatch, and gradients are added up in the type that they are made in, as in Alpa."""
    alone = SHARDED_ALONE.get(case.name) if method == "intra-only" else None
    return PlanOptions(
        cluster=case.cluster,
        microbatches=microbatches or (alone or case).microbatches,
        logical_shape=alone.shape if alone else None,
        schedule="1f1b",
        layers=layers or _layers(case, method),
        recompute="none" if _reruns(case) else "auto",
        batch_coupling="per-microbatch" if case.family == "wresnet" else "error",
        microbatch_sums="own",
        **METHODS[method],  # type: ignore[arg-type]
    )


def _layers(case: Case, method: str) -> int:
    """Stages of one device each get equally many layers, and two at least: of a Wide-ResNet stages
    compute a layer again at a time, with one layer a stage all of it at once. Megatron-LM divides
    blocks among stages: any number of stages that divides blocks and devices divides the layers."""
    if method == "inter-only":
        return case.devices * max(-(-case.layers // case.devices), 2)
    if method == "megatron":
        return lcm(case.layers, gcd(case.spec.layers, case.devices))
    return case.layers
