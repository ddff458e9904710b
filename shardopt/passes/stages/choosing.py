"""The stages of a program under the options of `shardopt-choose-stages`: from the plan file, or
found by a planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jaxlib.mlir import ir

from shardopt.dialect.manual import MANUAL, read_region
from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.prediction import PlannedPrediction
from shardopt.dialect.program import StepProgram
from shardopt.graph.offloading import MODES as OFFLOAD_MODES
from shardopt.graph.recomputed_units import MODES, searched_modes
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.cluster_file import content_of
from shardopt.hardware.memory_limit import host_memory_limit, memory_limit
from shardopt.ir.io import module_bytecode
from shardopt.ir.rewriting import operations
from shardopt.mesh.mesh import axes_text
from shardopt.passes.base import PassContext
from shardopt.passes.stages.open_configs import open_configs, with_offload, with_recomputation
from shardopt.passes.stages.placing import ChosenStages, usual_for
from shardopt.passes.stages.read_step import check_clustered, read_step
from shardopt.planfile.parts import PlannedStage
from shardopt.schedule.schedules import AUTO, ScheduleKind, find_schedule, searched_schedules
from shardopt.solve.stages.baselines.planner import BaselinePlanner, PlannerInput
from shardopt.solve.stages.baselines.registry import find_planner
from shardopt.solve.stages.candidates import CandidateProblem, check_number
from shardopt.solve.stages.costs.lazy_costs import LazyStageCosts
from shardopt.solve.stages.costs.recomputation import can_recompute
from shardopt.solve.stages.fewer_configs import FewerConfigs, fewer_configs, number_of_candidates
from shardopt.solve.stages.search.costs_by_kind import costs_by_kind
from shardopt.solve.stages.search.plan_file_stages import (
    candidate_filter,
    fixed_stages,
    plan_file_planner,
    with_plan_file_configs,
)
from shardopt.solve.stages.search.plan_search import NoneIsShorter, PlanSearch, search_plans
from shardopt.solve.stages.search.shared_meshes import sharing_planner
from shardopt.solve.stages.stage_problem import StageConfig
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.passes.stages.choose_stages import ChooseStages


@dataclass(frozen=True, eq=False)
class StageChooser:
    """Chooses the stages of one program; `pm` hears of it."""

    options: ChooseStages
    cluster: Cluster
    file_stages: tuple[PlannedStage, ...]
    pm: PassContext

    def choose(
        self, program: StepProgram, file_prediction: PlannedPrediction | None
    ) -> ChosenStages:
        """Raises UserError and ValueError where there is no plan, or options contradict."""
        kind = self._kind()
        if self.file_stages:
            check_clustered(program)
            stages = fixed_stages(self.file_stages, _num_layers(program), self.cluster)
            if stages is not None:  # nothing is open, so nothing is solved
                self.pm.statistic("stage candidates", 0)
                self.pm.statistic("sharding problems solved", 0)
                usual = usual_for(self.file_stages)
                schedule = usual if self.options.schedule == AUTO else kind.name
                if file_prediction is not None:
                    schedule = file_prediction.schedule
                return ChosenStages(stages, schedule, file_prediction)
        return self._search(program, kind)

    def _kind(self) -> ScheduleKind:
        """What is planned for; one stage a mesh where the planner chooses. Raises UserError for an
        unknown schedule."""
        schedule = self.options.schedule
        # `auto` compares only schedules of one stage a mesh, for which 1F1B stands here.
        return find_schedule("1f1b" if schedule == AUTO else schedule).planned

    def _search(self, program: StepProgram, kind: ScheduleKind) -> ChosenStages:
        planner = self._planner(kind)
        request = planner.request(
            self.options.inter_op,
            PlannerInput(
                self.options.num_stages or None,
                self.options.mcmc_seed,
                self.options.mcmc_proposals,
            ),
        )
        costs = self._costs(program, planner, request, kind)
        problem = costs.candidates
        search = self._solve(program, costs, planner, request, kind)
        best = search.best
        if self.options.faster_than and best.step_seconds >= self.options.faster_than:
            raise NoneIsShorter(
                f"a step takes {best.step_seconds:.4g} s, no less than "
                f"{self.options.faster_than:.4g} s"
            )
        steps = ", ".join(
            f"{each.schedule} {each.step_seconds:.3g} s" for each in search.best_by_schedule
        )
        message = f"schedule {best.schedule}: steps are {steps}"
        if not search.is_finished:
            message += "; other plans may be shorter, to know would take more work than is spent"
        self.pm.remark("schedule", program.module.operation, message, category="passed")
        self.pm.statistic("plans simulated", len(search.simulated))
        stages = tuple(
            (start, end, problem.configs[config]) for start, end, config in best.plan.stages
        )
        prediction = PlannedPrediction(
            best.schedule, best.step_seconds, best.plan.seconds, search.formula_bound
        )
        return ChosenStages(stages, best.schedule, prediction)

    def _planner(self, kind: ScheduleKind) -> BaselinePlanner:
        planner = find_planner(self.options.inter_op)
        if kind.stages_per_mesh > 1:
            planner = sharing_planner(planner, self.options.inter_op, kind)
            if self.file_stages:
                raise UserError(
                    f"schedule '{self.options.schedule}': expected stages with all their fields, "
                    "found open ones"
                )
        elif self.file_stages:
            planner = plan_file_planner(planner, self.file_stages, self.cluster)
        return planner

    def _costs(
        self,
        program: StepProgram,
        planner: BaselinePlanner,
        request: PlannerInput,
        kind: ScheduleKind,
    ) -> LazyStageCosts:
        """The costs of stages under the schedules of a kind. A search over schedules finds what
        they share once."""

        def content() -> Sequence[str | bytes]:
            options = replace(self.options, schedule=AUTO, faster_than=0.0)
            return module_bytecode(program.module), repr(options), content_of(self.cluster)

        every_kind = costs_by_kind(content, lambda: self._extract(program, planner, request))
        return every_kind.of(kind)

    def _extract(
        self, program: StepProgram, planner: BaselinePlanner, request: PlannerInput
    ) -> CandidateProblem:
        """The step by layers, and the configs that its stages may have, where each has a mesh of
        its own."""
        options, cluster = self.options, self.cluster
        step, input_kinds = read_step(program, options.batch_args)
        step = replace(step, fusing=cluster.fusing)
        limits = [
            memory_limit(group.device, options.memory_fraction, options.memory_budget)
            for group in cluster.groups
        ]
        configs = open_configs(cluster, options.submesh, options.logical_shape, options.intra_op)
        modes: tuple[str, ...] = (options.recompute,)
        if options.recompute == "auto":
            # Planners of the literature know stages that recompute as a whole.
            modes = searched_modes(step.num_layers) if options.inter_op == "dp" else MODES
        if not can_recompute(step):
            modes = ("none",)  # what loops would recompute has no known cost
        configs = with_recomputation(
            with_plan_file_configs(planner.configs(configs), self.file_stages), modes
        )
        configs = with_offload(configs, self._offload_modes(), cluster)
        if not configs:
            raise UserError(
                f"inter-op={options.inter_op} has no use for any submesh that the "
                "other options allow"
            )
        allowed = candidate_filter(self.file_stages, cluster)
        if allowed is None:
            fewer = self._fewer(configs, step.num_layers, request.num_stages, program)
            configs, allowed = fewer.configs, fewer.allows if fewer.kept else None
        check_number(step.num_layers, configs)
        return CandidateProblem(
            step=step,
            num_layers=step.num_layers,
            cluster=cluster,
            configs=configs,
            num_microbatches=program.num_microbatches,
            num_stages=len(self.file_stages) or request.num_stages,
            memory_limit_bytes=tuple(limits),
            input_kinds=input_kinds,
            allowed=allowed,
            host_limit_bytes=tuple(map(host_memory_limit, cluster.groups)),
        )

    def _fewer(
        self,
        configs: tuple[StageConfig, ...],
        num_layers: int,
        num_stages: int | None,
        program: StepProgram,
    ) -> FewerConfigs:
        """As many as can be looked at; the user hears which."""
        per_mesh = self._kind().stages_per_mesh
        fewer = fewer_configs(num_layers, configs, self.cluster, num_stages, per_mesh)
        if fewer.kept:
            number = number_of_candidates(num_layers, configs)
            self.pm.warning(
                program.module.operation,
                f"{num_layers} layers have {number:,} candidate stages on {self.cluster}, of which "
                f"those with {' and '.join(fewer.kept)} are looked at; options submesh and "
                "recompute name others",
            )
        return fewer

    def _offload_modes(self) -> tuple[str, ...]:
        """The option, or what the search may choose from; a plan file asks for some, too."""
        mode = self.options.offload
        if mode == "auto":
            return OFFLOAD_MODES
        named = {stage.offload for stage in self.file_stages if stage.offload is not None}
        return tuple(each for each in OFFLOAD_MODES if each == mode or each in named)

    def _with_regions(
        self, message: str, problem: CandidateProblem, program: StepProgram
    ) -> UserError:
        """The error where there is no plan, at a manual region if one may be the reason."""
        for op in operations(program.module.operation, (MANUAL,)):
            region = read_region(op)
            meshes = map(problem.mesh, problem.configs)
            if not all(region.on(mesh) is not None for mesh in meshes):
                return self.pm.error(
                    op,
                    f"{message}; a stage with this code for one device of a mesh "
                    f"({axes_text(region.axes)}) needs such a mesh",
                )
        return UserError(message)

    def _solve(
        self,
        program: StepProgram,
        stage_costs: LazyStageCosts,
        planner: BaselinePlanner,
        request: PlannerInput,
        kind: ScheduleKind,
    ) -> PlanSearch:
        problem = stage_costs.candidates
        transfers = problem.transfers()
        if transfers.goes_back and problem.num_stages != 1:
            kind.check_backward()
        schedules: tuple[str, ...] = (kind.name,)
        if self.options.schedule == AUTO:
            # Without gradients nothing tells a forward-only program from one layer that trains.
            schedules = searched_schedules(transfers.goes_back or problem.num_layers == 1)
        beat = self.options.faster_than or float("inf")
        try:
            return search_plans(
                stage_costs, schedules, transfers, planner, request, faster_than=beat
            )
        except NoneIsShorter:
            raise
        except UserError as error:
            message = "; ".join((str(error), *stage_costs.refusals))
            raise self._with_regions(message, problem, program) from error
        finally:
            counts = stage_costs.counts
            self.pm.statistic("stage candidates", stage_costs.num_candidates)
            self.pm.statistic("exact stage costs", stage_costs.num_exact)
            self.pm.statistic("sharding problems solved", counts.solves)
            self.pm.statistic("stage costs from the cache", counts.from_store)


def _num_layers(program: StepProgram) -> int:
    ops = (*program.body_ops, *program.prologue, *program.epilogue)
    return 1 + max((ir.IntegerAttr(op.attributes[LAYER]).value for op in ops), default=0)
