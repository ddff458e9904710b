"""`shardopt.optimize`: from a model to a plan in one call."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from shardopt.frontend.arguments import BatchArguments, batch_text, cluster_text, constraints_text
from shardopt.frontend.plan import InterOp, Plan, PlanOptions
from shardopt.frontend.planning import make_plan

if TYPE_CHECKING:
    from shardopt.ir.diagnostics import Handler


def optimize(
    model: Any,
    cluster: str | os.PathLike[str],
    *,
    batch_args: BatchArguments = "auto",
    batch_coupling: str = "error",
    microbatches: int | None = 1,
    layers: int | Literal["search"] | None = None,
    delta: float = 0.5,
    stages: int | None = None,
    submesh: str | None = None,
    logical_shape: str | None = None,
    schedule: str = "auto",
    intra_op: str = "ilp",
    inter_op: InterOp = "dp",
    unroll: bool = True,
    explain: str = "",
    annotations: str = "keep",
    constraints: str | os.PathLike[str] = "",
    memory_budget: int | str = "",
    recompute: str = "auto",
    resharding: str = "auto",
    mcmc_seed: int = 0,
    mcmc_proposals: int = 10000,
    plan: str | os.PathLike[str] = "",
    cache: bool = True,
    profile: str | os.PathLike[str] = "",
    on_phase: Callable[[str], None] | None = None,
    handler: Handler | None = None,
) -> Plan:
    """Plan a model for a cluster: stages on submeshes, a sharding for every tensor, transfers and a schedule.

    `model` is a `jax.export.Exported`, an MLIR module of StableHLO, its text, bytecode or portable artifact as bytes,
    or the path of a file with one. `cluster` is a cluster file or a preset (`"cpu-test:1x4"`). What is left `None` is
    the planner's choice.

    batch_args     arguments that hold the batch: "auto", numbers of flat arguments or names such as "batch['x']" or
                   "batch*", or a dictionary number or name -> batch dimension
    microbatches   into how many parts the batch is cut; None tries several and takes the best
    batch_coupling what to do about statistics over the whole batch: "error", or "per-microbatch"
    layers, stages how many layers to cluster into, how many pipeline stages; layers="search" takes more as long as
                   that shortens the predicted step
    delta          by which fraction a layer may exceed its equal share of the FLOPs
    submesh        allow only submeshes of this shape, HOSTSxDEVICES
    logical_shape  allow only this logical shape of a submesh, such as "2x2"
    schedule       "auto" (the one with the shortest predicted step), a name such as "1f1b", "zero-bubble" or
                   "interleaved:2", or a CSV file (docs/schedules.md)
    intra_op       how shardings are chosen: "ilp", or a baseline such as "data" or "zero3" (see docs/intra-op.md)
    inter_op       how stages are chosen: "dp", or a baseline such as "megatron" (see docs/baselines.md)
    mcmc_seed      of the random walk of inter_op="mcmc", and `mcmc_proposals`, its steps
    recompute      what stages compute again in their backward: "none", "layer", "full", or "auto"
    resharding     how values travel between meshes: "auto", or one strategy for all (docs/resharding.md)
    unroll         turn loops over layers into straight code first, so that stages can cut between layers
    explain        an operation or value whose sharding remarks explain: "arg0", "dot_general:3", …
    annotations    shardings that the model asks for: "keep" obeys what fits, "require" all of them, "drop" none
    constraints    a file of constraints on shardings (docs/constraints.md)
    memory_budget  bytes that a device may hold, such as "512MiB", instead of a share of what the cluster says
    plan           a plan file; what it decides is taken from it (docs/plan-file.md)
    cache          find the plan, or prices of its stages, where an earlier run has left them (docs/planning-time.md)
    profile        a file of `shardopt profile`: what was measured overrides the formulas (docs/profile.md)

    `on_phase(name)` is told when a phase begins; `handler` gets warnings and remarks. Raises UserError.
    """
    options = PlanOptions(
        cluster=cluster_text(cluster),
        batch_args=batch_text(batch_args, model),
        batch_coupling=batch_coupling,
        microbatches=microbatches,
        layers=layers,
        delta=delta,
        stages=stages,
        submesh=submesh,
        logical_shape=logical_shape,
        schedule=schedule,
        intra_op=intra_op,
        inter_op=inter_op,
        unroll=unroll,
        annotations=annotations,
        constraints=constraints_text(constraints),
        memory_budget=str(memory_budget),
        profile=os.fspath(profile),
        recompute=recompute,
        resharding=resharding,
        mcmc_seed=mcmc_seed,
        mcmc_proposals=mcmc_proposals,
        plan=os.fspath(plan),
    )
    found = make_plan(model, options, explain=explain, cache=cache, on_phase=on_phase, handler=handler)
    return replace(found, source=model)
