"""Shardings from a plan file: those of all values of a stage, without search, or those of some
arguments."""

from __future__ import annotations

from dataclasses import replace

from shardopt.extract.mesh_graphs import MeshGraph
from shardopt.mesh.mesh import Sharding
from shardopt.passes.sharding.decide.solving import Solved
from shardopt.planfile.parts import PlanFile, PlannedShardings
from shardopt.solve.sharding.budget.search import Fit
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem
from shardopt.solve.sharding.plans.strategy_text import fixed_inputs, record, restore
from shardopt.support.errors import UserError


def first_stage(plan: PlanFile, graph: MeshGraph, number: int) -> int:
    """The stage of the file that says how the values of a mesh are sharded: its first. `number` is
    that of the mesh, for one without fragments. Raises UserError where another stage of the mesh
    says something."""
    stages = sorted({stage // graph.slices for stage in graph.stages.values()}) or [number]
    for stage in stages[1:]:
        if stage < len(plan.stages) and plan.stages[stage].shardings is not None:
            raise UserError(
                f"field 'stages[{stage}].shardings': expected the shardings of mesh "
                f"'{graph.mesh.name}' in its first stage, stages[{stages[0]}]"
            )
    return stages[0]


def planned_shardings(plan: PlanFile, number: int) -> PlannedShardings | None:
    """What the file says of the values of a stage and of those that share its mesh."""
    return plan.stages[number].shardings if number < len(plan.stages) else None


def arguments_of(graph: MeshGraph) -> dict[int, int]:
    """Tensor -> number of the argument of `@main`."""
    return {tensor: number for number, tensor in graph.arguments.items()}


def fixed_of(plan: PlanFile, number: int, graph: MeshGraph) -> dict[int, Sharding]:
    """Shardings of arguments that the solver has to keep to. Raises UserError."""
    planned = planned_shardings(plan, number)
    # With rows for operations nothing is left to solve: `restored` takes the plan as it is.
    if planned is None or planned.ops:
        return {}
    return fixed_inputs(
        planned, graph.graph, graph.mesh, arguments_of(graph), f"stages[{number}].shardings"
    )


def restored(
    graph: MeshGraph, problem: IntraOpProblem, planned: PlannedShardings, number: int
) -> Solved:
    """The plan that the file tells. Raises UserError."""
    path = f"stages[{number}].shardings"
    solution, plan = restore(problem, planned, arguments_of(graph), path)
    solution = replace(solution, statistics={"nodes": problem.problem.num_nodes})
    return Solved(problem, Fit(solution, plan), plan, graph, {op: op for op in problem.ops})


def recorded(graph: MeshGraph, solved: Solved) -> PlannedShardings:
    assert solved.plan is not None
    return record(solved.plan, solved.problem.tables, solved.ops, arguments_of(graph))
