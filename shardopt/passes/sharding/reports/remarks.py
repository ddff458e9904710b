"""What is said about the sharding of a module: figures of each plan, why products run as they do,
lost annotations."""

from __future__ import annotations

from collections.abc import Sequence

from shardopt.extract.mesh_graphs import MeshGraph
from shardopt.passes.base import PassContext
from shardopt.passes.sharding.decide.solving import Solved
from shardopt.passes.sharding.demands.demand_rules import Lost
from shardopt.solve.assignment.search.repeated_layers import table_entries
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.strategies.strategies import Strategy

# Operations whose choice decides a plan; remarks on every elementwise operation would hide them.
_EXPLAINED = frozenset({"dot_general", "convolution"})

# What the solver says of steps that readers share, in words.
_SHARING = {
    "pair_objective": "objective if each reader paid for itself",
    "price_rounds": "rounds of prices",
    "shared_integer_programs": "integer programs of shared steps",
    "share_rounds": "rounds of messages and shares",
    "tied_share_rounds": "rounds of messages and shares with equal layers tied",
}


def report_plan(pm: PassContext, graph: MeshGraph, solved: Solved) -> None:
    """Statistics and one remark about the plan of a mesh."""
    mesh = graph.mesh.name
    problem = solved.problem.problem
    solution = solved.fit.solution
    plan = solved.plan
    assert plan is not None
    cost = plan.summary()
    pm.statistic(f"{mesh}: nodes", int(str(solution.statistics["nodes"])))
    pm.statistic(f"{mesh}: strategies", sum(map(len, problem.costs)))
    pm.statistic(f"{mesh}: table entries", table_entries(problem))
    pm.statistic(f"{mesh}: predicted seconds", cost.seconds)
    pm.statistic(f"{mesh}: objective", solution.objective)
    pm.statistic(f"{mesh}: predicted peak bytes", plan.peak_bytes)
    pm.statistic(f"{mesh}: gap", solution.gap)
    for name, words in _SHARING.items():
        if isinstance(value := solution.statistics.get(name), (int, float)):
            pm.statistic(f"{mesh}: {words}", value)
    for kind, number in cost.collectives:
        pm.statistic(f"{mesh}: {kind}", number)
    kinds = ", ".join(f"{number} {kind}" for kind, number in cost.collectives) or "no collectives"
    is_bounded = solution.gap < 1  # not where a file gives the shardings
    proven = f"within {solution.gap:.2%} of the optimum" if is_bounded else "no bound is known"
    message = f"mesh '{mesh}': predicted {cost.seconds:.3g} s with {kinds}; {proven}"
    tied, freed = (solution.statistics.get(f"{how}_objective") for how in ("tied", "freed"))
    if isinstance(tied, float) and isinstance(freed, float):
        pm.statistic(f"{mesh}: objective with equal layers tied", tied)
        pm.statistic(f"{mesh}: objective with all layers free", freed)
        message += (
            f"; solved once for {solution.statistics['tied_nodes']} kinds of nodes at "
            f"{tied:.4g} s, freed {freed:.4g} s"
        )
    if solved.first is not graph:
        message += f"; mesh '{solved.first.mesh.name}' looks alike and was solved for both"
    pm.remark("sharding-plan", None, message, category="analysis")


def report_strategies(graph: MeshGraph, solved: Solved, plan: IntraOpPlan, pm: PassContext) -> None:
    """Why a matrix product or convolution runs as it does: its strategy beside the cheapest and the
    replicated one."""
    tables = solved.problem.tables
    # Operations that are alike share a table, and most of them its choice.
    messages: dict[tuple[int, int], str] = {}
    for number, (op, handle) in enumerate(zip(graph.reader.ops, graph.reader.handles, strict=True)):
        if op.name not in _EXPLAINED:
            continue
        chosen, all_of_it = plan.strategies[number], tables.ops[solved.ops[number]].strategies
        key = id(chosen), id(all_of_it)
        if key not in messages:
            messages[key] = _why(chosen, all_of_it)
        pm.remark("strategy", handle, messages[key], category="passed")


def _why(chosen: Strategy, all_of_it: Sequence[Strategy]) -> str:
    cheapest = min(strategy.seconds for strategy in all_of_it)
    whole = [
        s.seconds
        for s in all_of_it
        if all(sharding.is_replicated for sharding in (*s.operands, *s.results))
    ]
    operands = " × ".join(map(str, chosen.operands))
    return (
        f"{operands} -> {', '.join(map(str, chosen.results))}: {chosen.compute_seconds:.3g} s "
        f"of compute and {chosen.communication_seconds:.3g} s of collectives; of "
        f"{len(all_of_it)} strategies the cheapest alone takes "
        f"{cheapest:.3g} s" + (f", replicated {whole[0]:.3g} s" if whole else "")
    )


def report_lost(lost: Sequence[Lost], mode: str, pm: PassContext) -> None:
    """One message for all annotations that cannot be obeyed: how many on which mesh, and the first
    of them."""
    if not lost:
        return
    meshes = dict.fromkeys(item.mesh for item in lost)
    counts = ", ".join(
        f"{sum(item.mesh == mesh for item in lost)} on mesh {mesh}" for mesh in meshes
    )
    message = (
        f"sharding annotations that cannot be obeyed: {counts}; the first is {lost[0].message}"
    )
    if mode == "require":
        raise pm.error(lost[0].where, message)
    pm.warning(lost[0].where, message)
