"""The same assignment problem for CP-SAT: a second opinion that shares neither presolve nor
formulation code.

One literal for each strategy and for each allowed pair of an edge, tied by their sums, and one row
a time for memory. Good for small and middle problems; on large ones it proves little. Costs must
become integers: if they are not already, they are scaled until the largest has nine digits, which
the bound allows for."""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING

import numpy as np

from shardopt.solve.assignment.problem import Problem, Solution, evaluate, relative_gap

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

# CP-SAT takes integers only: other costs become so many steps of the largest.
_DIGITS = 1e9
_LARGEST_EXACT = 2.0**40  # a sum of a million of these still fits
_RANDOM_SEED = 1


def solve_cp_sat(problem: Problem, *, time_limit_seconds: float) -> Solution:
    """Solve `problem` with one worker. The status is "optimal" only if every cost is an integer or
    the bound says so.

    Deterministic unless the time limit (seconds) strikes.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    scale, exact = _scale(problem)
    nodes = [[model.new_bool_var("") for _ in cost] for cost in problem.costs]
    terms: list[tuple[IntVar, int]] = []
    for literals, cost in zip(nodes, problem.costs, strict=True):
        # No literal fulfils an empty clause: a node without strategies makes the model infeasible.
        model.add_exactly_one(literals) if literals else model.add_bool_or([])
        terms += _cost_terms(model, literals, cost, scale)
    for edge in problem.edges:
        terms += _add_edge(model, nodes[edge.u], nodes[edge.v], edge.cost, scale)
    _add_memory(model, problem, nodes)
    model.minimize(
        cp_model.LinearExpr.weighted_sum(
            [literal for literal, _ in terms], [cost for _, cost in terms]
        )
    )

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = _RANDOM_SEED
    solver.parameters.max_time_in_seconds = time_limit_seconds
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return Solution((), inf, inf, 0.0, "infeasible")
    # Each of the chosen entries was rounded by at most half a unit.
    slack = 0.0 if exact else 0.5 * (problem.num_nodes + len(problem.edges))
    bound = (solver.best_objective_bound - slack) / scale
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solution((), inf, bound, inf, "timeout")
    choice = tuple(
        next(s for s, literal in enumerate(literals) if solver.boolean_value(literal))
        for literals in nodes
    )
    objective = evaluate(problem, choice).objective
    bound = min(bound, objective)
    proven = status == cp_model.OPTIMAL and exact
    return Solution(
        choice,
        objective,
        bound,
        relative_gap(objective, bound),
        "optimal" if proven else "feasible",
    )


def _scale(problem: Problem) -> tuple[float, bool]:
    """The factor that makes costs integers, and whether that loses nothing."""
    tables = [*problem.costs, *(edge.cost.ravel() for edge in problem.edges)]
    values = np.concatenate([np.zeros(1), *tables])
    values = values[np.isfinite(values)]
    largest = float(np.abs(values).max())
    if largest <= _LARGEST_EXACT and bool((values == np.rint(values)).all()):
        return 1.0, True
    return _DIGITS / largest, False


def _cost_terms(
    model: CpModel, literals: list[IntVar], costs: np.ndarray, scale: float
) -> list[tuple[IntVar, int]]:
    terms = []
    for literal, cost in zip(literals, costs.tolist(), strict=True):
        if isfinite(cost):
            terms.append((literal, round(cost * scale)))
        else:
            model.add(literal == 0)
    return terms


def _add_edge(
    model: CpModel, rows: list[IntVar], columns: list[IntVar], table: np.ndarray, scale: float
) -> list[tuple[IntVar, int]]:
    if rows is columns:
        return _cost_terms(model, rows, np.diagonal(table), scale)
    pairs = {(int(p), int(q)): model.new_bool_var("") for p, q in np.argwhere(table < inf)}
    for p, literal in enumerate(rows):
        model.add(sum(pair for (row, _), pair in pairs.items() if row == p) == literal)
    for q, literal in enumerate(columns):
        model.add(sum(pair for (_, column), pair in pairs.items() if column == q) == literal)
    return [(pair, round(float(table[p, q]) * scale)) for (p, q), pair in pairs.items()]


def _add_memory(model: CpModel, problem: Problem, nodes: list[list[IntVar]]) -> None:
    if problem.memory_limit is None or problem.usages is None:
        return
    segments = [
        (node, usage)
        for node, usages in enumerate(problem.usages)
        for usage in usages
        if usage.lo < usage.hi
    ]
    # Usage rises only where a segment begins.
    for time in sorted({usage.lo for _, usage in segments}):
        live = [(node, usage) for node, usage in segments if usage.lo <= time < usage.hi]
        terms = [
            int(size) * literal
            for node, usage in live
            for size, literal in zip(usage.bytes, nodes[node], strict=True)
            if size
        ]
        model.add(sum(terms) <= problem.memory_limit)
