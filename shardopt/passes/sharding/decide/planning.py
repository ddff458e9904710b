"""The plans of all meshes of a module under the options of `shardopt-choose-shardings`, with what
is said of them.

For each mesh the rules of the problem come from the user's demands, the plan file and the method
(`intra-op`); `shardopt.passes.sharding.decide.solving` then solves meshes that look alike once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardopt.extract.batch_arguments import batch_of
from shardopt.extract.mesh_graphs import MeshGraph
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.memory_limit import memory_limit
from shardopt.passes.base import PassContext
from shardopt.passes.from_plan.shardings import first_stage, fixed_of, planned_shardings, restored
from shardopt.passes.sharding.decide.input_kinds import find_input_kinds, received_batches
from shardopt.passes.sharding.decide.solving import MeshSolver, Request, Solved
from shardopt.passes.sharding.demands.user_constraints import Demands
from shardopt.passes.sharding.reports.explanations import report_explanations, select_explained
from shardopt.passes.sharding.reports.memory_report import report_rematerialized, too_small
from shardopt.passes.sharding.reports.remarks import report_plan, report_strategies
from shardopt.passes.sharding.reports.selection import Selected
from shardopt.planfile.parts import VERSION, PlanFile, PlannedShardings
from shardopt.planfile.plan_file import load_plan_file
from shardopt.solve.assignment.problem import Solution
from shardopt.solve.presets.presets import restrict
from shardopt.solve.sharding.budget.search import Fit, fit
from shardopt.solve.sharding.intra_op.builder import ImpossibleSharding
from shardopt.solve.sharding.intra_op.problem import (
    IntraOpProblem,
    IntraOpTables,
)
from shardopt.solve.sharding.strategies.constraints import Constraints
from shardopt.solve.sharding.strategies.linear import find_linear
from shardopt.solve.sharding.strategies.tables import StrategyTables
from shardopt.support.progress import progress

if TYPE_CHECKING:
    from shardopt.passes.sharding.choose_shardings import ChooseShardings


@dataclass(frozen=True, eq=False)
class MeshPlanner:
    """Plans the meshes of one module; `pm` hears of it."""

    options: ChooseShardings
    cluster: Cluster
    demands: Demands
    pm: PassContext

    def plans(self, graphs: Sequence[MeshGraph]) -> list[Solved]:
        """The plan of each mesh, from the plan file or solved. Raises PassFailure where there is
        none, UserError and ValueError for options that fit no mesh."""
        explained = select_explained(graphs, self.options.explain)
        batch_args, methods = self.options.batch_args, [graph.method for graph in graphs]
        received = received_batches(methods, graphs, batch_args)
        gap = self.options.search_limits.gap_tolerance
        solver = MeshSolver(self.cluster, self.problem, self._solve, self._fit, gap)
        plan_file = load_plan_file(self.options.plan) if self.options.plan else PlanFile(VERSION)
        requests, known = [], list[tuple[PlannedShardings, int] | None]()
        for number, (graph, selected, batch) in enumerate(
            zip(graphs, explained, received, strict=True)
        ):
            stage = first_stage(plan_file, graph, number)
            constraints = self._constraints(graph, plan_file, stage)
            rows = planned_shardings(plan_file, stage)
            known.append((rows, stage) if rows is not None and rows.ops else None)
            # Shardy reads the module itself, and who asks for an explanation is told about this
            # very mesh; and a mesh that is the only one looks like no other
            alone = len(graphs) == 1 or graph.method == "shardy" or bool(selected)
            own = batch_of(graph, batch_args)
            requests.append(Request(graph, constraints, own, batch, alone))
        solver.prepare(
            request for request, choices in zip(requests, known, strict=True) if choices is None
        )
        plans = []
        for number, (request, choices, selected) in enumerate(
            zip(requests, known, explained, strict=True)
        ):
            graph = request.graph
            progress(number, len(graphs), f"meshes, now {graph.mesh}")
            if choices is None:
                solved = solver.plan(request)
            else:
                strategies = StrategyTables(graph.mesh, self.cluster)
                problem = self.problem(graph, request.constraints, request.received, strategies)
                solved = restored(graph, problem, *choices)
            self._report(graph, solved, selected)
            plans.append(solved)
        self.pm.statistic("meshes solved", solver.num_kinds)
        return plans

    def problem(
        self,
        graph: MeshGraph,
        constraints: Constraints,
        received: Mapping[int, int],
        strategies: StrategyTables,
    ) -> IntraOpProblem:
        """The problem of a mesh without a memory limit. `received` tensors hold the batch along a
        dimension."""
        linear = find_linear(graph.graph, graph.tied, graph.sent) if self._opens_sums(graph) else ()
        tables = IntraOpTables(
            graph.graph, graph.mesh, strategies.cluster, constraints, linear, strategies
        )
        input_kinds = find_input_kinds(
            graph.method, graph, tables, self.options.batch_args, received=received
        )
        restriction = restrict(graph.method, tables, input_kinds)
        try:
            return tables.problem(
                fixed=restriction.fixed,
                allowed=restriction.allowed,
                tied=tuple(graph.tied),
                transient=restriction.transient,
                residency=graph.residency,
            )
        except ImpossibleSharding as error:
            where = graph.fragments[0] if error.op is None else graph.reader.handles[error.op]
            raise self.pm.error(where, str(error)) from error

    def _constraints(self, graph: MeshGraph, plan_file: PlanFile, stage: int) -> Constraints:
        pinned = {
            tensor: (sharding,) for tensor, sharding in fixed_of(plan_file, stage, graph).items()
        }
        return Constraints(
            self.demands.allowed(graph.reader) | pinned,
            self.demands.forbidden(graph.reader),
            self._even(graph),
            # In a program of one device every reader would have to mask the padding.
            partitioned=self.options.sharding_format != "collectives",
        )

    def _even(self, graph: MeshGraph) -> frozenset[int]:
        """`jax` takes and gives arrays with even tiles alone. Meshes of several sizes would pad a
        value that goes from one to the other each in its own way."""
        even = {*graph.sent, *graph.arrivals}
        if self.options.sharding_format == "sdy":
            even.update((*graph.arguments.values(), *graph.outputs))
        return frozenset(even)

    def _solve(self, problem: IntraOpProblem) -> Solution:
        return problem.solve(self.options.search_limits)

    def _fit(self, problem: IntraOpProblem, relaxed: Solution, start: Sequence[int]) -> Fit:
        return fit(
            problem,
            self._limit(problem),
            limits=self.options.search_limits,
            relaxed=relaxed,
            start=start,
        )

    def _limit(self, problem: IntraOpProblem) -> int | None:
        device = problem.tables.strategies.device
        return memory_limit(device, self.options.memory_fraction, self.options.memory_budget)

    def _opens_sums(self, graph: MeshGraph) -> bool:
        # A plain module in GSPMD's form cannot leave sums open: GSPMD drops them without a word.
        option = self.options.unreduced
        return option == "on" or (
            option == "auto" and (graph.is_staged or self.options.sharding_format != "mhlo")
        )

    def _report(self, graph: MeshGraph, solved: Solved, selected: Sequence[Selected]) -> None:
        if solved.plan is None:
            raise too_small(
                graph, solved.problem, solved.fit, self._limit(solved.problem) or 0, self.pm
            )
        report_plan(self.pm, graph, solved)
        report_rematerialized(graph, solved.plan, self.pm)
        report_strategies(graph, solved, solved.plan, self.pm)
        report_explanations(self.pm, graph, solved.problem, solved.fit.solution, selected)
