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
   (`shardopt.ir.user_constraints`).
2. Extract one op graph a mesh, from all of its fragments (`shardopt.ir.mesh_graphs`); operations of the microbatch body
   count once for each microbatch.
3. Solve the assignment of strategies on each (`shardopt.solve.sharding.intra_op`).
4. Write shardings and costs (`shardopt.ir.sharding_writer`); with `sharding-format=sdy` a plain module is brought into
   Shardy's form (`shardopt.ir.shardy`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jaxlib.mlir import ir

from shardopt.cost.cluster import Cluster
from shardopt.cost.constraint_file import load_constraints
from shardopt.cost.errors import UserError
from shardopt.cost.mesh import Mesh, Sharding, parse_mesh
from shardopt.cost.sizes import parse_bytes
from shardopt.cost.spans import timed
from shardopt.dialect.cluster import cluster_of
from shardopt.dialect.sharded_form import write_cost
from shardopt.ir.accumulators import add_sum_points, drop_idle_sum_points, separate_accumulators
from shardopt.ir.batch_arguments import batch_of, parse_batch_arguments
from shardopt.ir.control_flow import mark_carried, pin_values
from shardopt.ir.demand_rules import DemandError, Lost
from shardopt.ir.graph import find_unreadable, sharding_rules
from shardopt.ir.mesh_graphs import MeshGraph, is_staged, read_plain, read_staged
from shardopt.ir.remaking import make_for_readers
from shardopt.ir.rematerializing import Rematerializer, later_readers
from shardopt.ir.resharding_stops import insert_scatters, insert_stops
from shardopt.ir.rewriting import functions, symbol_name
from shardopt.ir.selection import Selected
from shardopt.ir.sharding_writer import (
    annotate_block,
    annotate_signature,
    refresh_function_type,
    retype,
    write_partitions,
)
from shardopt.ir.shardy import to_shardy
from shardopt.ir.shardy_propagation import propagate
from shardopt.ir.user_constraints import Demands, read_demands
from shardopt.passes.base import Pass, PassContext, PassFailure, option
from shardopt.passes.explanations import report_explanations, select_explained
from shardopt.passes.memory_report import report_rematerialized, too_small
from shardopt.passes.replication import report_replicated
from shardopt.solve.assignment.problem import Problem, Solution
from shardopt.solve.assignment.repeated_layers import table_entries
from shardopt.solve.presets.data import data_parallel
from shardopt.solve.presets.flow import follow_between
from shardopt.solve.presets.presets import Roles, restrict
from shardopt.solve.sharding.budget import fit
from shardopt.solve.sharding.constraints import Constraints
from shardopt.solve.sharding.intra_op import IntraOpTables
from shardopt.solve.sharding.intra_op_plan import IntraOpPlan
from shardopt.solve.sharding.linear import find_linear

# Operations whose choice decides a plan; remarks on every elementwise operation would hide them.
_EXPLAINED = frozenset({"dot_general", "convolution"})


@dataclass(frozen=True)
class ShardStages(Pass):
    """See the head of the file."""

    name = "shardopt-shard-stages"
    summary = "choose a sharding for every value inside a stage"

    cluster: str = option("", help="cluster file or preset; default: the cluster the stage phase planned for")
    intra_op: Literal[
        "ilp",
        "data",
        "zero1",
        "zero2",
        "zero3",
        "mics",
        "megatron",
        "sequence",
        "summa-2d",
        "expert",
        "heuristic",
        "replicate",
        "shardy",
    ] = option("ilp", help="how shardings are chosen: by the solver, or as a known method does (see docs/intra-op.md)")
    mesh: str = option("", help="shape of the mesh for a module without stages, such as 2x2")
    batch_args: tuple[str, ...] = option(
        ("auto",), help="batch arguments of @main as INDEX[:DIM], or auto, or none; for presets that split the batch"
    )
    annotations: Literal["keep", "require", "drop"] = option(
        "keep", help="sharding annotations of the model: obey them where they can be, insist on all, or ignore them"
    )
    constraints: str = option("", help="file of constraints on shardings, YAML or JSON")
    sharding_format: Literal["mhlo", "sdy"] = option("mhlo", help="form of the shardings of a module without stages")
    memory_fraction: float = option(0.9, help="share of device memory that a stage may fill; 0 removes the limit")
    explain: str = option("", help="an operation or value to explain: argN, resultN, OP, OP:N, or a location pattern")
    memory_budget: str = option("", help="bytes that a stage may fill instead, such as 512MiB")
    gap: float = option(0.001, help="stop within this share of the optimum; predictions are no better than that")
    partial_sums: Literal["auto", "on", "off"] = option(
        "auto",
        help="whether sums over mesh axes may stay open; auto: in stages and in sdy format, as GSPMD cannot",
    )
    time_limit: float = option(60.0, help="seconds the solver may take for one mesh")

    def __post_init__(self) -> None:
        if not 0 <= self.memory_fraction <= 1:
            raise ValueError(f"memory-fraction must lie between 0 and 1, found {self.memory_fraction}")
        if self.memory_budget:
            parse_bytes(self.memory_budget)
        if self.gap < 0:
            raise ValueError(f"gap must not be negative, found {self.gap}")
        if self.time_limit <= 0:
            raise ValueError(f"time-limit must be positive, found {self.time_limit}")
        if self.batch_args not in (("auto",), ("none",)):
            parse_batch_arguments(self.batch_args)

    def run(self, module: ir.Module, pm: PassContext) -> None:
        main = next((f for f in functions(module) if symbol_name(f) == "main"), None)
        if main is None:
            raise pm.error(module.operation, "expected a function '@main', found none")
        unreadable = find_unreadable(module.operation)
        if unreadable is not None:
            raise pm.error(unreadable[0], f"expected ranked tensors of static shape, found {unreadable[1]}")
        try:
            cluster = cluster_of(module, self.cluster)
            mesh = None if is_staged(main) else self._mesh(cluster)
            demands = self._demands(module, main, mesh, pm)
            mark_carried(module.operation)
            self._prepare_accumulators(module, mesh)
            with timed("sharding program: read"), sharding_rules(module):
                graphs = read_staged(module, main) if mesh is None else (read_plain(main, mesh),)
            explained = select_explained(graphs, self.explain)
            received = self._received(graphs)
            plans = [
                self._solve(graph, self._tables(graph, cluster, demands), pm, wanted, batch)
                for graph, wanted, batch in zip(graphs, explained, received, strict=True)
            ]
        except PassFailure:
            raise
        except DemandError as error:
            raise pm.error(error.where, error.message, error.notes) from error
        except (UserError, ValueError) as error:
            raise pm.error(main, str(error)) from error
        for graph in graphs:
            report_replicated(graph, pm)
        write_plans(module, main, graphs, plans)
        if mesh is not None and self.sharding_format == "sdy":
            to_shardy(module, mesh)
        elif mesh is not None and any(sharding.partial for sharding in plans[0].shardings.values()):
            pm.warning(main, "sums stay open: only for Shardy's partitioner, GSPMD would drop them without a word")

    def _demands(self, module: ir.Module, main: ir.Operation, mesh: Mesh | None, pm: PassContext) -> Demands:
        if mesh is None and self.sharding_format == "sdy":
            raise UserError("expected sharding-format=mhlo for a module with stages, found sdy")
        entries = load_constraints(self.constraints) if self.constraints else ()
        demands = read_demands(module, main, mesh, entries, obey_annotations=self.annotations != "drop")
        _report_lost(demands.lost, self.annotations, pm)
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
        return mesh

    def _limit(self, cluster: Cluster) -> int | None:
        if self.memory_budget:
            return parse_bytes(self.memory_budget)
        return int(self.memory_fraction * cluster.device.memory_bytes) or None

    def _tables(self, graph: MeshGraph, cluster: Cluster, demands: Demands) -> IntraOpTables:
        constraints = Constraints(demands.allowed(graph.reader), demands.forbidden(graph.reader))
        linear = find_linear(graph.graph, graph.tied, graph.sent) if self._opens_sums(graph) else ()
        return IntraOpTables(graph.graph, graph.mesh, cluster, constraints, linear)

    def _received(self, graphs: Sequence[MeshGraph]) -> list[Mapping[int, int]]:
        """For each mesh where the batch lies in what others send; only presets want to know."""
        if self.intra_op == "ilp":
            return [{} for _ in graphs]
        roles = [Roles(graph.state, batch_of(graph, self.batch_args)) for graph in graphs]
        found = follow_between([graph.graph for graph in graphs], roles, [graph.sources for graph in graphs])
        return [known.received for known in found]

    def _solve(
        self,
        graph: MeshGraph,
        tables: IntraOpTables,
        pm: PassContext,
        explained: Sequence[Selected],
        received: Mapping[int, int],
    ) -> IntraOpPlan:
        tied = tuple(graph.tied)
        roles = find_roles(self.intra_op, graph, tables, self.batch_args, received=received)
        restriction = restrict(self.intra_op, tables, roles)
        fixed, allowed = restriction.fixed, restriction.allowed
        problem = tables.problem(fixed=fixed, allowed=allowed, tied=tied, residency=graph.residency)
        limit = self._limit(tables.strategies.cluster)
        found = fit(problem, limit, time_limit_seconds=self.time_limit, gap_tolerance=self.gap)
        plan = found.plan
        if plan is None:
            raise too_small(graph, problem, found, limit or 0, pm)
        _count(pm, graph.mesh.name, problem.problem, found.solution, plan)
        report_rematerialized(graph, plan, pm)
        _report_strategies(graph, tables, plan, pm)
        report_explanations(pm, graph, problem, found.solution, explained)
        return plan


def _report_lost(lost: Sequence[Lost], mode: str, pm: PassContext) -> None:
    """One message for all annotations that cannot be obeyed: how many on which mesh, and the first of them."""
    if not lost:
        return
    meshes = dict.fromkeys(item.mesh for item in lost)
    counts = ", ".join(f"{sum(item.mesh == mesh for item in lost)} on mesh {mesh}" for mesh in meshes)
    said = f"sharding annotations that cannot be obeyed: {counts}; the first is {lost[0].message}"
    if mode == "require":
        raise pm.error(lost[0].where, said)
    pm.warning(lost[0].where, said)


def find_roles(
    preset: str,
    graph: MeshGraph,
    tables: IntraOpTables,
    batch_args: Sequence[str],
    annotated: Mapping[int, Sharding] | None = None,
    received: Mapping[int, int] | None = None,
) -> Roles:
    """What a preset has to know of a graph. Raises UserError and ValueError.

    Shardy propagates from shardings that the user demands or, for want of any, from `annotated` ones or from the batch.
    `received` is where the batch lies in values that other meshes send.
    """
    roles = Roles(graph.state, batch_of(graph, batch_args), received or {}, tuple(graph.tied))
    if preset != "shardy":
        return roles
    demanded = {tensor: found[0] for tensor, found in tables.constraints.allowed.items() if len(found) == 1}
    given = demanded or annotated or data_parallel(tables, roles, preset).inputs()
    return replace(roles, propagated=propagate(graph, given))


def _count(pm: PassContext, mesh: str, problem: Problem, solution: Solution, plan: IntraOpPlan) -> None:
    cost = plan.summary()
    pm.statistic(f"{mesh}: nodes", int(str(solution.statistics["nodes"])))
    pm.statistic(f"{mesh}: strategies", sum(map(len, problem.costs)))
    pm.statistic(f"{mesh}: table entries", table_entries(problem))
    pm.statistic(f"{mesh}: predicted seconds", cost.seconds)
    pm.statistic(f"{mesh}: objective", solution.objective)
    pm.statistic(f"{mesh}: predicted peak bytes", plan.peak_bytes)
    pm.statistic(f"{mesh}: gap", solution.gap)
    for kind, number in cost.collectives:
        pm.statistic(f"{mesh}: {kind}", number)
    kinds = ", ".join(f"{number} {kind}" for kind, number in cost.collectives) or "no collectives"
    said = f"mesh '{mesh}': predicted {cost.seconds:.3g} s with {kinds}; within {solution.gap:.2%} of the optimum"
    tied, freed = (solution.statistics.get(f"{how}_objective") for how in ("tied", "freed"))
    if isinstance(tied, float) and isinstance(freed, float):
        pm.statistic(f"{mesh}: objective with equal layers tied", tied)
        pm.statistic(f"{mesh}: objective with all layers free", freed)
        said += (
            f"; solved once for {solution.statistics['tied_nodes']} kinds of nodes at {tied:.4g} s, freed {freed:.4g} s"
        )
    pm.remark("sharding-plan", None, said, category="analysis")


def _report_strategies(graph: MeshGraph, tables: IntraOpTables, plan: IntraOpPlan, pm: PassContext) -> None:
    """Why a matrix product or convolution runs as it does: its strategy beside the cheapest and the replicated one."""
    for number, (op, handle) in enumerate(zip(graph.reader.ops, graph.reader.handles, strict=True)):
        if op.name not in _EXPLAINED:
            continue
        chosen, all_of_it = plan.strategies[number], tables.ops[number].strategies
        cheapest = min(strategy.seconds for strategy in all_of_it)
        whole = [s.seconds for s in all_of_it if all(sharding.is_replicated for sharding in (*s.operands, *s.results))]
        operands = " × ".join(map(str, chosen.operands))
        said = (
            f"{operands} -> {', '.join(map(str, chosen.results))}: {chosen.compute_seconds:.3g} s of compute and "
            f"{chosen.communication_seconds:.3g} s of collectives; of {len(all_of_it)} strategies the cheapest alone "
            f"takes {cheapest:.3g} s" + (f", replicated {whole[0]:.3g} s" if whole else "")
        )
        pm.remark("strategy", handle, said, category="passed")


@timed("sharding program: write")
def write_plans(
    module: ir.Module, main: ir.Operation, graphs: Sequence[MeshGraph], plans: Sequence[IntraOpPlan]
) -> None:
    """Write the plan of each mesh into the module that its graph was read from."""
    for graph, plan in zip(graphs, plans, strict=True):
        _apply(graph, plan)
    if is_staged(main):
        for function in functions(module):
            refresh_function_type(function)
    else:
        _apply_signature(module, main, graphs[0], plans[0])


def _apply(graph: MeshGraph, plan: IntraOpPlan) -> None:
    wanted = {op: strategy.operands for op, strategy in plan.strategies.items()}
    shardings = {value: plan.shardings[tensor] for value, tensor in graph.reader.index.items()}
    retype(shardings)
    shardings |= insert_scatters(graph.reader, _scattered(plan))
    _rematerialize(graph, plan, wanted, shardings)
    shardings |= make_for_readers(graph.reader, plan.made_anywhere, plan.shardings, wanted)
    shardings |= insert_stops(graph.reader, graph.mesh, plan.shardings, wanted, plan.made_anywhere)
    drop_idle_sum_points(graph.reader, shardings)
    groups = [op.group for op in graph.reader.ops]
    for number, fragment in enumerate(graph.fragments):
        shardings |= pin_values(fragment, shardings)
        annotate_block(fragment.regions[0].blocks[0], shardings, graph.mesh)
        ops = [k for k, group in enumerate(groups) if group == number]
        write_cost(fragment, plan.summary(ops, repeated=False))


def _rematerialize(
    graph: MeshGraph,
    plan: IntraOpPlan,
    wanted: Mapping[int, Sequence[Sharding]],
    shardings: dict[ir.Value, Sharding],
) -> None:
    rematerializer = Rematerializer(graph.reader, shardings)
    for again in plan.rematerialized:
        operands, results = ([getattr(s, side) for s in again.strategies] for side in ("operands", "results"))
        rematerializer.compute_again(again.chain, again.readers, operands, [result[0] for result in results])
    separate = {again.tensor for again in plan.rematerialized}
    for tensor, sharding, op in sorted(plan.fresh, key=lambda copy: (copy[2], copy[0], str(copy[1]))):
        if tensor not in separate:
            rematerializer.read_again(tensor, later_readers(graph.reader, wanted, tensor, sharding, op))


def _scattered(plan: IntraOpPlan) -> dict[int, tuple[Sharding, Sharding]]:
    """Operations that end in a reduce-scatter, or in the sum of what partial operands give: before and after it."""
    return {
        op: (strategy.unscattered[0], strategy.results[0])
        for op, strategy in plan.strategies.items()
        if strategy.unscattered != strategy.results
    }


def _apply_signature(module: ir.Module, main: ir.Operation, graph: MeshGraph, plan: IntraOpPlan) -> None:
    arguments = [plan.shardings[tensor] for tensor in graph.arguments.values()]
    annotate_signature(main, arguments, [plan.shardings[tensor] for tensor in graph.outputs], graph.mesh)
    write_partitions(module, graph.mesh)
