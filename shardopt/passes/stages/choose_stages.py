"""Choose pipeline stages and their submeshes; change no operation.

Needs the clustered form. Afterwards the placed form: decisions are attributes, which the next
passes obey.

    func.func @main(…) {                             func.func @main(…) attributes {
      …                                                  shardopt.stages = [
      %r = mpmd.for (…) {iterations = 4} …                 {layers = [0, 1], mesh = "m0"},
                                              =>           {layers = [2, 2], mesh = "m1"}],
                                                         topology = <"m0" : …>, <"m1" : …> … } {
                                                       %r = mpmd.for (…) {shardopt.in_flight = …,
                                                                          shardopt.predicted = …} …

1. Extract the body by layers, and the state that each layer owns
   (`shardopt.passes.stages.read_step`).
2. Solve: find the costs of candidate stages with the intra-operator solver, for each schedule the
   best plans by the stage DP (Alpa §5.2) or a baseline, and of these the one whose simulated step
   is shortest (`shardopt.passes.stages.choosing`). What a plan file (`plan=`) says of the stages is
   taken from there; if it leaves nothing open, nothing is solved.
3. Place the stages on devices and write that (`shardopt.passes.stages.placing`). Under a schedule
   such as interleaved 1F1B several stages share a mesh.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.cluster import write_cluster
from shardopt.dialect.prediction import PlannedPrediction
from shardopt.dialect.program import read_program
from shardopt.graph.recomputed_units import check_mode
from shardopt.hardware.cluster_file import with_overlap
from shardopt.hardware.memory_limit import check_budget, check_memory_options
from shardopt.hardware.profile_file import with_profile
from shardopt.options.names import IntraOp, OffloadChoice, OverlapChoice, StagePlanner
from shardopt.passes.base import Pass, PassContext, PassFailure, option, plan_option
from shardopt.passes.from_plan.cluster import cluster_for
from shardopt.passes.stages.choosing import StageChooser
from shardopt.passes.stages.placing import (
    ChosenStages,
    check_host_links,
    place_stages,
    write_placement,
)
from shardopt.passes.stages.stacked_arguments import warn_of_stacked
from shardopt.planfile.parts import VERSION, PlanFile
from shardopt.planfile.plan_file import load_plan_file
from shardopt.schedule.schedules import AUTO, find_schedule
from shardopt.support.errors import UserError


@dataclass(frozen=True)
class ChooseStages(Pass):
    """See the head of the file."""

    name = "shardopt-choose-stages"
    summary = "choose pipeline stages and their submeshes"

    cluster: str = plan_option("cluster")
    profile: str = plan_option("profile")
    num_stages: int = plan_option("stages")
    submesh: str = plan_option("submesh")
    logical_shape: str = plan_option("logical_shape")
    inter_op: StagePlanner = plan_option("inter_op")
    intra_op: IntraOp = plan_option("intra_op")
    batch_args: tuple[str, ...] = plan_option("batch_args", default=("auto",))
    mcmc_seed: int = plan_option("mcmc_seed")
    mcmc_proposals: int = plan_option("mcmc_proposals")
    schedule: str = plan_option(
        "schedule",
        help="schedule that the stages are planned for; auto: the one with the shortest step",
    )
    overlap: OverlapChoice = plan_option("overlap")
    recompute: str = plan_option("recompute")
    offload: OffloadChoice = plan_option("offload")
    memory_fraction: float = plan_option("memory_fraction")
    memory_budget: str = plan_option("memory_budget")
    faster_than: float = option(
        0.0, help="seconds: refuse steps that are no shorter, early where it is certain; 0: none"
    )
    plan: str = plan_option("plan")

    def __post_init__(self) -> None:
        check_memory_options(self.memory_fraction, self.memory_budget)
        check_mode(self.recompute)

    def check_options(self) -> None:
        plan_file = load_plan_file(self.plan) if self.plan else PlanFile(VERSION)
        cluster = with_profile(cluster_for(self.cluster, plan_file), self.profile)
        check_budget(cluster, self.memory_budget)
        if self.schedule != AUTO:
            find_schedule(self.schedule)

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            plan_file = load_plan_file(self.plan) if self.plan else PlanFile(VERSION)
            program = read_program(module)
            cluster = with_profile(cluster_for(self.cluster, plan_file), self.profile)
            cluster = with_overlap(cluster, self.overlap)
            check_budget(cluster, self.memory_budget)
            chooser = StageChooser(self, cluster, plan_file.stages, pm)
            predicted = plan_file.stage_phase_prediction()
            chosen = chooser.choose(program, PlannedPrediction(**predicted) if predicted else None)
            placement = place_stages(
                chosen,
                plan_file.stages,
                cluster,
                program.num_microbatches,
                self.recompute,
                self.offload,
            )
            check_host_links(placement.stages, placement.topology, cluster)
        except PassFailure:
            raise
        except (UserError, ValueError) as error:
            raise pm.error(module.operation, str(error)) from error
        # Later phases plan for the same devices without being told again.
        write_cluster(module, cluster)
        write_placement(program, placement)
        _report(module, chosen, pm)
        warn_of_stacked(program, [range(start, end) for start, end, _ in chosen.stages], pm)


def _report(module: ir.Module, chosen: ChosenStages, pm: PassContext) -> None:
    if chosen.prediction is not None:
        pm.statistic("predicted step seconds", chosen.prediction.step_seconds)
    pm.statistic("stages", len(chosen.stages))
    for stage, (start, end, config) in enumerate(chosen.stages):
        message = f"stage {stage}: layers {start} to {end - 1} run on submesh {config}"
        pm.remark("stage-cut", module.operation, message, category="passed")
