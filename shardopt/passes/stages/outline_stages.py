"""Choose pipeline stages and their submeshes, and outline the program onto them.

Needs the clustered form. Afterwards `@main` and `@microbatch` consist of `mpmd.fragment`s on the
meshes of the `topology`, joined by bare `mpmd.transfer`s; all values are `!mpmd.mesh_tensor`s, the
module carries `shardopt.cluster` and the loop `shardopt.predicted`. A stage has a forward fragment
and, where it needs values of later stages, a backward fragment.

    %3 = stablehlo.dot_general … {shardopt.layer = 0}     %f = mpmd.fragment<mesh="m0", origin=["layer_0"], stage=0> …
    %4 = stablehlo.dot_general … {shardopt.layer = 1} =>  %t = mpmd.transfer %f : … "m0" … -> … "m1" …
    %9 = stablehlo.dot_general … {shardopt.layer = 0}     %g = mpmd.fragment<mesh="m1", origin=["layer_1"], stage=1> …

1. extract: the body by layers, and the state each layer owns.
2. solve: find the costs of candidates with the intra-operator solver, for each schedule the stage DP (Alpa
   §5.2) or a baseline; of the best plans the one whose simulated step is shortest. What a plan file
   (`plan=`) says of the stages is taken from there; if it leaves nothing open, nothing is solved.
3. apply: place the stages on devices (`shardopt.passes.stages.placing`) and outline
   (`shardopt.passes.stages.staging`). Under a schedule such as interleaved 1F1B several stages
   share a mesh (`shardopt.solve.stages.search.shared_meshes`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from jaxlib.mlir import ir

from shardopt.dialect.cluster import write_cluster
from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.prediction import Prediction, write_prediction
from shardopt.dialect.program import Program, read_program
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.memory_limit import check_budget, check_memory_options, memory_limit
from shardopt.hardware.profile_file import with_profile
from shardopt.options.names import IntraOp, Recompute, RecomputeChoice, StagePlanner
from shardopt.passes.base import Pass, PassContext, option, plan_option
from shardopt.passes.stages.open_configs import open_configs, with_recomputation
from shardopt.passes.stages.placing import cluster_for, place_stages, usual_for
from shardopt.passes.stages.read_step import check_clustered, read_step
from shardopt.passes.stages.stage_order import out_of_order
from shardopt.passes.stages.staging import outline_stages
from shardopt.planfile.parts import VERSION, PlanFile
from shardopt.planfile.plan_file import load_plan_file
from shardopt.schedule.schedules import AUTO, ScheduleKind, find_runnable, searched_schedules
from shardopt.solve.stages.baselines.planner import Planner, Request
from shardopt.solve.stages.baselines.registry import find_planner
from shardopt.solve.stages.candidates import CandidateProblem
from shardopt.solve.stages.costs.lazy_costs import LazyStageCosts
from shardopt.solve.stages.costs.recomputation import can_recompute
from shardopt.solve.stages.search.plan_file_stages import (
    Cut,
    candidate_filter,
    fixed_stages,
    plan_file_planner,
    with_plan_file_configs,
)
from shardopt.solve.stages.search.plan_search import PlanSearch, search_plans
from shardopt.solve.stages.search.shared_meshes import sharing_planner
from shardopt.solve.stages.stage_problem import RECOMPUTE
from shardopt.support.errors import UserError


def _extract(
    program: Program, cluster: Cluster, planner: Planner, options: OutlineStages
) -> CandidateProblem:
    step, input_kinds = read_step(program, options.batch_args)
    step = replace(step, merged_kernels=cluster.merges_kernels)
    file_stages = options.plan_file.stages
    configs = open_configs(cluster, options.submesh, options.logical_shape, options.intra_op)
    modes: tuple[Recompute, ...] = (
        RECOMPUTE if options.recompute == "auto" else (options.recompute,)
    )
    # What loops would compute again has no known cost.
    modes = modes if can_recompute(step) else ("none",)
    allowed = with_recomputation(
        with_plan_file_configs(planner.configs(configs), file_stages), modes
    )
    if not allowed:
        raise UserError(
            f"inter-op={options.inter_op} has no use for any submesh that the other options allow"
        )
    limits = [
        memory_limit(group.device, options.memory_fraction, options.memory_budget)
        for group in cluster.groups
    ]
    return CandidateProblem(
        step,
        step.num_layers,
        cluster,
        allowed,
        program.num_microbatches,
        len(file_stages) or options.request(planner).num_stages,
        tuple(None if limit is None else limit // options.kind.stages_per_mesh for limit in limits),
        input_kinds,
        candidate_filter(file_stages, cluster),
        options.kind.stages_per_mesh,
    )


def _solve(
    problem: CandidateProblem, planner: Planner, options: OutlineStages, pm: PassContext
) -> PlanSearch:
    stage_costs, transfers = LazyStageCosts(problem), problem.transfers()
    trains = transfers.goes_back or problem.num_layers == 1
    schedules = searched_schedules(trains) if options.schedule == AUTO else (options.kind.name,)
    try:
        beat = options.faster_than or float("inf")
        return search_plans(
            stage_costs, schedules, transfers, planner, options.request(planner), faster_than=beat
        )
    except UserError as error:
        raise UserError("; ".join((str(error), *stage_costs.refusals))) from error
    finally:
        counts = stage_costs.counts
        pm.statistic("stage candidates", stage_costs.num_candidates)
        pm.statistic("exact stage costs", stage_costs.num_exact)
        pm.statistic("sharding problems solved", counts.solves)
        pm.statistic("stage costs from the cache", counts.from_store)


@dataclass(frozen=True)
class _Chosen:
    """The stages, by search or from a plan file, and what is predicted of them (None for stages
    made by hand)."""

    stages: tuple[Cut, ...]
    schedule: str
    prediction: Prediction | None


@dataclass(frozen=True)
class OutlineStages(Pass):
    """See the head of the file."""

    name = "shardopt-outline-stages"
    summary = "choose stages and submeshes, and outline the program onto them"

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
    recompute: RecomputeChoice = plan_option("recompute")
    memory_fraction: float = plan_option("memory_fraction")
    memory_budget: str = plan_option("memory_budget")
    faster_than: float = option(
        0.0, help="seconds: give up early if no step can be shorter; 0 takes any step"
    )
    plan: str = plan_option("plan")

    def __post_init__(self) -> None:
        check_memory_options(self.memory_fraction, self.memory_budget)

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            if self.schedule != AUTO:
                find_runnable(self.schedule)
            program = read_program(module)
            cluster = with_profile(cluster_for(self.cluster, self.plan_file), self.profile)
            check_budget(cluster, self.memory_budget)
            chosen = self._given(program, cluster, pm) or self._planned(program, cluster, pm)
            placement = place_stages(
                chosen.stages,
                chosen.schedule,
                self.plan_file.stages,
                cluster,
                program.num_microbatches,
                self.recompute,
            )
            misplaced = out_of_order(program, placement) if self.plan else None
        except (UserError, ValueError) as error:
            raise pm.error(module.operation, str(error)) from error
        if misplaced is not None:
            raise pm.error(*misplaced)
        outline_stages(program, placement)
        write_cluster(module, cluster)
        if chosen.prediction is not None:
            write_prediction(read_program(module).loop, chosen.prediction)
            pm.statistic("predicted step seconds", chosen.prediction.step_seconds)
        pm.statistic("stages", len(chosen.stages))
        for stage, (start, end, config) in enumerate(chosen.stages):
            message = f"stage {stage}: layers {start} to {end - 1} run on submesh {config}"
            pm.remark("stage-cut", module.operation, message, category="passed")

    @cached_property
    def plan_file(self) -> PlanFile:
        return load_plan_file(self.plan) if self.plan else PlanFile(VERSION)

    def _given(self, program: Program, cluster: Cluster, pm: PassContext) -> _Chosen | None:
        """The stages of a plan file that leaves nothing open."""
        if not self.plan_file.stages:
            return None
        check_clustered(program)
        layers = (
            max((ir.IntegerAttr(op.attributes[LAYER]).value for op in program.body_ops), default=0)
            + 1
        )
        stages = fixed_stages(self.plan_file.stages, layers, cluster)
        if stages is None:
            return None
        pm.statistic("stage candidates", 0)
        pm.statistic("sharding problems solved", 0)
        predicted = self.plan_file.stage_phase_prediction()
        if predicted is not None:
            return _Chosen(stages, predicted["schedule"], Prediction(**predicted))
        return _Chosen(
            stages,
            usual_for(self.plan_file.stages) if self.schedule == AUTO else self.kind.name,
            None,
        )

    def _planned(self, program: Program, cluster: Cluster, pm: PassContext) -> _Chosen:
        planner = find_planner(self.inter_op)
        if self.kind.stages_per_mesh > 1:
            planner = sharing_planner(planner, self.inter_op, self.kind)
            if self.plan_file.stages:
                raise UserError(
                    f"schedule '{self.schedule}': expected stages with all their fields, found "
                    "open ones"
                )
        elif self.plan_file.stages:
            planner = plan_file_planner(planner, self.plan_file.stages, cluster)
        problem = _extract(program, cluster, planner, self)
        search = _solve(problem, planner, self, pm)
        best = search.best
        steps = ", ".join(
            f"{each.schedule} {each.step_seconds:.3g} s" for each in search.best_by_schedule
        )
        message = f"schedule {best.schedule}: steps are {steps}"
        pm.remark("schedule", program.module.operation, message, category="passed")
        pm.statistic("plans simulated", len(search.simulated))
        stages = tuple(
            (start, end, problem.configs[config]) for start, end, config in best.plan.stages
        )
        prediction = Prediction(
            best.schedule, best.step_seconds, best.plan.seconds, search.formula_bound
        )
        return _Chosen(stages, best.schedule, prediction)

    @property
    def kind(self) -> ScheduleKind:
        """What is planned for; one stage a mesh where the planner chooses. Raises UserError for an
        unknown schedule."""
        return find_runnable("1f1b" if self.schedule == AUTO else self.schedule).planned

    def request(self, planner: Planner) -> Request:
        """What the planner is asked for. Raises UserError."""
        return planner.request(
            self.inter_op, Request(self.num_stages or None, self.mcmc_seed, self.mcmc_proposals)
        )
