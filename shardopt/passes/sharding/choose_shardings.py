"""Choose a sharding for every value inside a stage, and a strategy for every operation; change none
of them.

Needs the staged form, or a plain imported module and the option `mesh`; in both what loops carry is
marked (`shardopt-mark-carried`). Afterwards the chosen form: decisions are attributes, which the
next passes obey.

    %f = mpmd.fragment<mesh="m0", …> (%x, %w) (%a: tensor<8x4xf32>, %b: tensor<4x4xf32>) {
      %1 = stablehlo.dot_general %a, %b …
    } … -> !mpmd.mesh_tensor<"m0", tensor<8x4xf32>>
 =>
    %f = mpmd.fragment<mesh="m0", …> (%x, %w) {shardopt.cost = {seconds = …, …}} (%a: …, %b: …) {
      %1 = stablehlo.dot_general %a, %b … {shardopt.strategy = "[{x}, {}], [{}, {}] -> [{x}, {}]"}
    } … -> !mpmd.mesh_tensor<"m0", tensor<8x4xf32>, sharding=<@m0, [{"x"}, {}]>>

1. Read what the user demands: `shardopt.sharding` annotations and the file of the option
   `constraints` (`shardopt.passes.sharding.demands.user_constraints`). Annotations go; markers
   stand where values are to be resharded.
2. Extract one op graph a mesh, from all of its fragments (`shardopt.extract.mesh_graphs`);
   operations of the microbatch body count once for each microbatch.
3. Solve the assignment of strategies on each (`shardopt.passes.sharding.decide.planning`), once
   for meshes that look alike; or take the strategies from a plan file (`plan=`).
4. Write what was decided (`shardopt.passes.sharding.decide.writing`): strategies, shardings in the
   types between fragments, what is recomputed, and costs; with `frontier`, the plans of other
   memory budgets too, as figures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from jaxlib.mlir import ir

from shardopt.cost.frontier import Frontier
from shardopt.dialect.choices import write_choices
from shardopt.dialect.cluster import cluster_of
from shardopt.dialect.manual import MANUAL
from shardopt.extract.batch_arguments import UndecidedBatch, parse_batch_arguments
from shardopt.extract.chosen_plan import main_of
from shardopt.extract.mesh_graphs import MeshGraph, is_staged, read_plain, read_staged
from shardopt.extract.op_graph import find_unreadable, sharding_rules
from shardopt.forms.frontier import write_frontier
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.cluster_file import load_cluster, with_overlap
from shardopt.hardware.memory_limit import check_budget, check_memory_options
from shardopt.hardware.profile_file import with_profile
from shardopt.mesh.mesh import Mesh, axes_text, matching_axes, parse_mesh
from shardopt.options.names import (
    Annotations,
    MeshIntraOp,
    OverlapChoice,
    ShardingFormat,
    Unreduced,
)
from shardopt.passes.base import Pass, PassContext, PassFailure, option, plan_option
from shardopt.passes.from_plan.shardings import recorded
from shardopt.passes.microbatches.find_batch import find_batch
from shardopt.passes.sharding.decide.planning import MeshPlanner
from shardopt.passes.sharding.decide.writing import write_plans
from shardopt.passes.sharding.demands.demand_rules import DemandError
from shardopt.passes.sharding.demands.demands import obeyed_demands
from shardopt.passes.sharding.reports.replication import report_replicated
from shardopt.planfile.constraint_file import load_constraints
from shardopt.planfile.plan_file import load_plan_file
from shardopt.solve.assignment.limits import SearchLimits, work_of
from shardopt.solve.sharding.budget.frontier import find_frontier
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem
from shardopt.support.errors import UserError
from shardopt.support.spans import timed


def _check_regions(graph: MeshGraph, pm: PassContext) -> None:
    """Manual regions lie on the mesh that they were written for, and on no other."""
    for op, handle in zip(graph.graph.ops, graph.reader.handles, strict=True):
        if op.island is not None and matching_axes(op.island.axes, graph.mesh) is None:
            raise pm.error(
                handle,
                f"expected a mesh with the axes that '{MANUAL}' is written for "
                f"({axes_text(op.island.axes)}), found {graph.mesh}",
            )


@dataclass(frozen=True)
class ChooseShardings(Pass):
    """See the head of the file."""

    name = "shardopt-choose-shardings"
    summary = "choose a sharding for every value inside a stage"

    planner: ClassVar[type[MeshPlanner]] = MeshPlanner

    cluster: str = plan_option(
        "cluster", help="cluster file or preset; default: the cluster the stage phase planned for"
    )
    profile: str = plan_option("profile")
    overlap: OverlapChoice = plan_option("overlap")
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
    sharding_format: ShardingFormat = option(
        "mhlo",
        help="form of the shardings of a module without stages: what GSPMD or Shardy reads, or the "
        "program of one device with collectives; only the latter two let sums stay open",
    )
    memory_fraction: float = plan_option("memory_fraction")
    explain: str = plan_option("explain")
    memory_budget: str = plan_option("memory_budget")
    gap: float = plan_option("gap")
    unreduced: Unreduced = plan_option("unreduced")
    time_limit: float = plan_option("time_limit")
    plan: str = plan_option("plan")
    frontier: int = option(
        0,
        help="also find the fastest plan at every memory budget, of a module without stages, with "
        "at most so many searches; 0: do not",
    )

    def __post_init__(self) -> None:
        check_memory_options(self.memory_fraction, self.memory_budget)
        if self.gap < 0:
            raise ValueError(f"gap must not be negative, found {self.gap}")
        if self.time_limit < 0:
            raise ValueError(f"time-limit must not be negative, found {self.time_limit}")
        if self.frontier < 0:
            raise ValueError(f"frontier must not be negative, found {self.frontier}")
        parse_batch_arguments(self.batch_args)

    def check_options(self) -> None:
        if self.cluster:
            with_profile(load_cluster(self.cluster), self.profile)
        if self.constraints:
            load_constraints(self.constraints)
        if self.plan:
            load_plan_file(self.plan)

    def run(self, module: ir.Module, pm: PassContext) -> None:
        try:
            main = main_of(module)
        except ValueError as error:
            raise pm.error(module.operation, str(error)) from error
        # First, as Shardy's pass for sharding rules fails on unranked and symbolic shapes.
        unreadable = find_unreadable(module.operation)
        if unreadable is not None:
            raise pm.error(
                unreadable[0], f"expected ranked tensors of static shape, found {unreadable[1]}"
            )
        try:
            self._choose(module, main, pm)
        except PassFailure:
            raise
        except DemandError as error:
            raise pm.error(error.where, error.message, error.notes) from error
        except (UserError, ValueError) as error:
            raise pm.error(main, str(error)) from error

    def _choose(self, module: ir.Module, main: ir.Operation, pm: PassContext) -> None:
        cluster = with_overlap(cluster_of(module, self.cluster, self.profile), self.overlap)
        check_budget(cluster, self.memory_budget)
        mesh = None if is_staged(main) else self._mesh(cluster)
        if mesh is None and self.sharding_format != "mhlo":
            raise UserError(
                "expected sharding-format=mhlo for a module with stages, found "
                f"{self.sharding_format}"
            )
        if mesh is None and self.frontier:
            raise UserError(
                "expected a module without stages for a frontier, found one with stages"
            )
        # Before the graphs are read, as demands put markers into the module.
        # Where no partitioner pads, tiles are even.
        padded = self.sharding_format != "collectives"
        demands = obeyed_demands(
            module, main, mesh, self.constraints, self.annotations, pm, padded=padded
        )
        graphs = self._extract(module, main, mesh, pm)
        for graph in graphs:
            _check_regions(graph, pm)
        solved = self.planner(self, cluster, demands, pm).plans(graphs)
        if mesh is None:
            pairs = zip(graphs, solved, strict=True)
            write_choices(main, {graph.mesh.name: recorded(graph, each) for graph, each in pairs})
        elif self.frontier:
            write_frontier(main, self._frontier(solved[0].problem))
        for graph in graphs:
            report_replicated(graph, pm)
        plans = [each.plan for each in solved if each.plan is not None]
        write_plans(module, main, graphs, plans, cluster)

    def _extract(
        self, module: ir.Module, main: ir.Operation, mesh: Mesh | None, pm: PassContext
    ) -> tuple[MeshGraph, ...]:
        with timed("sharding program: read"), sharding_rules(module):
            graphs = read_staged(module, main) if mesh is None else (read_plain(main, mesh),)
        if mesh is not None and self.intra_op not in ("auto", "ilp"):
            self._find_batch(module, main, graphs[0], pm)
        if self.intra_op == "auto":
            return graphs
        return tuple(replace(graph, method=self.intra_op) for graph in graphs)

    @property
    def search_limits(self) -> SearchLimits:
        # By work alone: plans must not depend on the load of the machine.
        return SearchLimits(gap_tolerance=self.gap, work=work_of(self.time_limit))

    def _frontier(self, problem: IntraOpProblem) -> Frontier:
        return find_frontier(
            problem,
            self.frontier,
            limits=self.search_limits,
        )

    def _find_batch(
        self, module: ir.Module, main: ir.Operation, graph: MeshGraph, pm: PassContext
    ) -> None:
        """What the microbatch phase has marked in a module with stages."""
        if self.batch_args != ("auto",):
            return
        try:
            batch = find_batch(module)
        except UndecidedBatch as error:
            graph.no_batch = error.reason
            return
        graph.batch = {each.index: each.dim for each in batch.all}
        pm.remark("batch-arguments", main, batch.describe(main), category="analysis")

    def _mesh(self, cluster: Cluster) -> Mesh:
        if not self.mesh:
            raise UserError(
                "expected a topology on '@main' or a mesh option such as '2x2', found none"
            )
        mesh = parse_mesh(self.mesh)
        if mesh.size > cluster.num_devices:
            raise UserError(
                f"mesh {self.mesh} needs {mesh.size} devices, cluster {cluster} has "
                f"{cluster.num_devices}"
            )
        cluster.group_of(mesh)
        return mesh
