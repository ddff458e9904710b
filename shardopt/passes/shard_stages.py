"""Choose a sharding for every value inside a stage.

Needs the staged form, or a plain imported module and the option `mesh`. Afterwards every operation of a fragment
carries `mhlo.sharding`, every mesh tensor type its axis sharding, and every fragment its predicted `shardopt.cost`; a
plain module carries `mhlo.sharding` on the operations, arguments and results of `@main`, and its cost on `@main`.

    %f = mpmd.fragment<mesh="m0", …> (%x, %w) (%a: tensor<8x4xf32>, %b: tensor<4x4xf32>) {
      %1 = stablehlo.dot_general %a, %b …
    } … -> !mpmd.mesh_tensor<"m0", tensor<8x4xf32>>
 =>
    %f = mpmd.fragment<mesh="m0", …> (%x, %w) {shardopt.cost = {seconds = …, …}} (%a: …, %b: …) {
      %1 = stablehlo.dot_general %a, %b … {mhlo.sharding = "{devices=[2,1]<=[2]}"}
    } … -> !mpmd.mesh_tensor<"m0", tensor<8x4xf32>, sharding=<@m0, [{"x"}, {}]>>

1. Read what the user demands: `shardopt.sharding` annotations and the file of the option `constraints`
   (`shardopt.passes.sharding.user_constraints`).
2. Extract one op graph a mesh, from all of its fragments (`shardopt.extract.mesh_graphs`); operations of the
   microbatch body count once for each microbatch.
3. Solve the assignment of strategies on each (`shardopt.solve.sharding.intra_op`), once for meshes that look alike
   (`shardopt.passes.sharding.solving`); or take the strategies from a plan file (`plan=`).
4. Write shardings and costs (`shardopt.passes.sharding.sharding_writer`); with `sharding-format=sdy` a plain
   module is brought into Shardy's form (`shardopt.forms.shardy`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jaxlib.mlir import ir

from shardopt.dialect.choices import write_choices
from shardopt.dialect.cluster import cluster_of
from shardopt.extract.batch_arguments import batch_of, parse_batch_arguments
from shardopt.extract.control_flow import mark_carried
from shardopt.extract.mesh_graphs import MeshGraph, is_staged, read_plain, read_staged
from shardopt.extract.op_graph import find_unreadable, sharding_rules
from shardopt.forms.shardy import to_shardy
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.memory_limit import check_memory_options, memory_limit
from shardopt.ir.rewriting import functions, symbol_name
from shardopt.mesh.mesh import Mesh, parse_mesh
from shardopt.options.names import Annotations, MeshIntraOp, PartialSums
from shardopt.passes.base import Pass, PassContext, PassFailure, option, plan_option
from shardopt.passes.given.shardings import first_stage, fixed_of, given_of, recorded, restored
from shardopt.passes.sharding.accumulators import add_sum_points, separate_accumulators
from shardopt.passes.sharding.demand_rules import DemandError
from shardopt.passes.sharding.explanations import report_explanations, select_explained
from shardopt.passes.sharding.memory_report import report_rematerialized, too_small
from shardopt.passes.sharding.remarks import report_lost, report_plan, report_strategies
from shardopt.passes.sharding.replication import report_replicated
from shardopt.passes.sharding.roles import find_roles, received_batches
from shardopt.passes.sharding.selection import Selected
from shardopt.passes.sharding.solving import MeshSolver, Solved
from shardopt.passes.sharding.user_constraints import Demands, read_demands
from shardopt.passes.sharding.writing import write_plans
from shardopt.planfile.constraint_file import load_constraints
from shardopt.planfile.parts import VERSION, PlanFile
from shardopt.planfile.plan_file import load_plan_file
from shardopt.solve.presets.presets import restrict
from shardopt.solve.sharding.budget import fit
from shardopt.solve.sharding.constraints import Constraints
from shardopt.solve.sharding.intra_op import ImpossibleSharding, IntraOpProblem, IntraOpTables
from shardopt.solve.sharding.linear import find_linear
from shardopt.solve.sharding.strategies_tables import StrategyTables
from shardopt.support.errors import UserError
from shardopt.support.progress import progress
from shardopt.support.spans import timed


@dataclass(frozen=True)
class ShardStages(Pass):
    """See the head of the file."""

    name = "shardopt-shard-stages"
    summary = "choose a sharding for every value inside a stage"

    cluster: str = plan_option(
        "cluster", help="cluster file or preset; default: the cluster the stage phase planned for"
    )
    profile: str = plan_option("profile")
    intra_op: MeshIntraOp = plan_option(
        "intra_op",
        default="auto",
        help="how shardings are chosen: by the solver (ilp) or as a known method does (see "
        "docs/concepts/intra-op.md); auto: as the stage was planned, else by the solver",
    )
    mesh: str = option("", help="shape of the mesh for a module without stages, such as 2x2")
    batch_args: tuple[str, ...] = plan_option("batch_args", default=("auto",))
    annotations: Annotations = plan_option("annotations")
    constraints: str = plan_option("constraints")
    sharding_format: Literal["mhlo", "sdy"] = option("mhlo", help="form of the shardings of a module without stages")
    memory_fraction: float = plan_option("memory_fraction")
    explain: str = plan_option("explain")
    memory_budget: str = plan_option("memory_budget")
    gap: float = plan_option("gap")
    partial_sums: PartialSums = plan_option("partial_sums")
    time_limit: float = plan_option("time_limit")
    plan: str = plan_option("plan")

    def __post_init__(self) -> None:
        check_memory_options(self.memory_fraction, self.memory_budget)
        if self.gap < 0:
            raise ValueError(f"gap must not be negative, found {self.gap}")
        if self.time_limit <= 0:
            raise ValueError(f"time-limit must be positive, found {self.time_limit}")
        parse_batch_arguments(self.batch_args)

    def run(self, module: ir.Module, pm: PassContext) -> None:
        main = next((f for f in functions(module) if symbol_name(f) == "main"), None)
        if main is None:
            raise pm.error(module.operation, "expected a function '@main', found none")
        unreadable = find_unreadable(module.operation)
        if unreadable is not None:
            raise pm.error(unreadable[0], f"expected ranked tensors of static shape, found {unreadable[1]}")
        try:
            cluster = cluster_of(module, self.cluster, self.profile)
            mesh = None if is_staged(main) else self._mesh(cluster)
            demands = self._demands(module, main, mesh, pm)
            mark_carried(module.operation)
            self._prepare_accumulators(module, mesh)
            with timed("sharding program: read"), sharding_rules(module):
                graphs = read_staged(module, main) if mesh is None else (read_plain(main, mesh),)
            if self.intra_op != "auto":
                graphs = tuple(replace(graph, method=self.intra_op) for graph in graphs)
            explained = select_explained(graphs, self.explain)
            received = received_batches([graph.method for graph in graphs], graphs, self.batch_args)
            solved = self._solve(graphs, cluster, demands, explained, received, pm)
            pairs = zip(graphs, solved, strict=True)
            choices = {} if mesh else {graph.mesh.name: recorded(graph, each) for graph, each in pairs}
        except PassFailure:
            raise
        except DemandError as error:
            raise pm.error(error.where, error.message, error.notes) from error
        except (UserError, ValueError) as error:
            raise pm.error(main, str(error)) from error
        for graph in graphs:
            report_replicated(graph, pm)
        plans = [each.plan for each in solved if each.plan is not None]
        write_plans(module, main, graphs, plans)
        if mesh is None:
            write_choices(main, choices)
        if mesh is not None and self.sharding_format == "sdy":
            to_shardy(module, mesh)
        elif mesh is not None and any(sharding.partial for sharding in plans[0].shardings.values()):
            pm.warning(main, "sums stay open: only for Shardy's partitioner, GSPMD would drop them without a word")

    def _demands(self, module: ir.Module, main: ir.Operation, mesh: Mesh | None, pm: PassContext) -> Demands:
        if mesh is None and self.sharding_format == "sdy":
            raise UserError("expected sharding-format=mhlo for a module with stages, found sdy")
        entries = load_constraints(self.constraints) if self.constraints else ()
        demands = read_demands(module, main, mesh, entries, obey_annotations=self.annotations != "drop")
        report_lost(demands.lost, self.annotations, pm)
        pm.statistic("annotations obeyed", demands.obeyed)
        return demands

    def _prepare_accumulators(self, module: ir.Module, mesh: Mesh | None) -> None:
        if mesh is None:
            separate_accumulators(module)
            if self.partial_sums != "off":
                add_sum_points(module)

    def _opens_sums(self, graph: MeshGraph) -> bool:
        staged = any(fragment.name == "mpmd.fragment" for fragment in graph.fragments)
        return self.partial_sums == "on" or (self.partial_sums == "auto" and (staged or self.sharding_format == "sdy"))

    def _mesh(self, cluster: Cluster) -> Mesh:
        if not self.mesh:
            raise UserError("expected a topology on '@main' or a mesh option such as '2x2', found none")
        mesh = parse_mesh(self.mesh)
        if mesh.size > cluster.num_devices:
            raise UserError(f"mesh {self.mesh} needs {mesh.size} devices, cluster {cluster} has {cluster.num_devices}")
        cluster.group_of(mesh)
        return mesh

    def _solve(
        self,
        graphs: Sequence[MeshGraph],
        cluster: Cluster,
        demands: Demands,
        explained: Sequence[Sequence[Selected]],
        received: Sequence[Mapping[int, int]],
        pm: PassContext,
    ) -> list[Solved]:
        """The plan of each mesh, from the plan file or solved, reported. Raises PassFailure where there is none."""
        solver = MeshSolver(
            cluster,
            lambda graph, constraints, batch, strategies: self._problem(graph, strategies, constraints, batch, pm),
            lambda problem: problem.solve(self.time_limit, self.gap),
            lambda problem, relaxed, start: fit(
                problem,
                self._limit(problem),
                time_limit_seconds=self.time_limit,
                gap_tolerance=self.gap,
                relaxed=relaxed,
                start=start,
            ),
        )
        given = load_plan_file(self.plan) if self.plan else PlanFile(VERSION)
        found = []
        for number, (graph, wanted, batch) in enumerate(zip(graphs, explained, received, strict=True)):
            progress(number, len(graphs), f"meshes, now {graph.mesh}")
            stage = first_stage(given, graph, number)
            pinned = {tensor: (sharding,) for tensor, sharding in fixed_of(given, stage, graph).items()}
            constraints = Constraints(demands.allowed(graph.reader) | pinned, demands.forbidden(graph.reader))
            # Shardy reads the module itself, and who asks for an explanation is told about this very mesh
            alone = graph.method == "shardy" or bool(wanted)
            rows = given_of(given, stage)
            if rows is not None and rows.ops:
                strategies = StrategyTables(graph.mesh, cluster)
                solved = restored(graph, self._problem(graph, strategies, constraints, batch, pm), rows, stage)
            else:
                solved = solver.plan(graph, constraints, batch_of(graph, self.batch_args), batch, alone=alone)
            if solved.plan is None:
                raise too_small(graph, solved.problem, solved.found, self._limit(solved.problem) or 0, pm)
            report_plan(pm, graph, solved)
            report_rematerialized(graph, solved.plan, pm)
            report_strategies(graph, solved, solved.plan, pm)
            report_explanations(pm, graph, solved.problem, solved.found.solution, wanted)
            found.append(solved)
        pm.statistic("meshes solved", solver.num_kinds)
        return found

    def _limit(self, problem: IntraOpProblem) -> int | None:
        return memory_limit(problem.tables.strategies.device, self.memory_fraction, self.memory_budget)

    def _problem(
        self,
        graph: MeshGraph,
        strategies: StrategyTables,
        constraints: Constraints,
        received: Mapping[int, int],
        pm: PassContext,
    ) -> IntraOpProblem:
        linear = find_linear(graph.graph, graph.tied, graph.sent) if self._opens_sums(graph) else ()
        tables = IntraOpTables(graph.graph, graph.mesh, strategies.cluster, constraints, linear, strategies)
        roles = find_roles(graph.method, graph, tables, self.batch_args, received=received)
        restriction = restrict(graph.method, tables, roles)
        fixed, allowed = restriction.fixed, restriction.allowed
        try:
            return tables.problem(fixed=fixed, allowed=allowed, tied=tuple(graph.tied), residency=graph.residency)
        except ImpossibleSharding as error:
            where = graph.fragments[0] if error.op is None else graph.reader.handles[error.op]
            raise pm.error(where, str(error)) from error
