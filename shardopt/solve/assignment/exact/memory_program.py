"""A small problem within a memory limit as an integer program for CP-SAT.

A linear program mixes a fast plan with a small one, so that within memory it is often 20 to 50 %
below the optimum, and what branches on linear programs closes that slowly. CP-SAT learns a clause
from each dead end instead (lazy clause generation; Ohrimenko, Stuckey and Codish 2009), with linear
programs as one source of bounds.

The columns are those of the marginal linearisation, all of them integers. The limit is a row for
each set of segments that are in memory together and in no larger one."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from shardopt.solve.assignment.exact.marginal_ilp import OPTIMAL_GAP
from shardopt.solve.assignment.exact.marginal_model import MarginalModel
from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.problem import Solution, Statistic, Status, relative_gap

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel

# Table entries that a core of its own touches in a second of CP-SAT's deterministic time.
_WORK_PER_SECOND = 1_500_000_000
_RANDOM_SEED = 1


def solve_within_memory(
    model: MarginalModel, limits: SearchLimits, start: tuple[int, ...] | None
) -> Solution:
    """As `solve_marginal`, for any model of it."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = _RANDOM_SEED
    # The linear programs have all rows of the polytope, not those alone that look useful.
    solver.parameters.linearization_level = 2
    solver.parameters.relative_gap_limit = limits.gap_tolerance
    if limits.seconds is not None:
        solver.parameters.max_time_in_seconds = limits.seconds
    if limits.work is not None:
        solver.parameters.max_deterministic_time = max(limits.work, 0) / _WORK_PER_SECOND
    status = solver.solve(_program(model, start))
    statistics: dict[str, Statistic] = {
        "columns": model.num_columns,
        "rows": model.num_rows,
        "work": int(solver.response_proto.deterministic_time * _WORK_PER_SECOND),
        "late": int(limits.seconds is not None and solver.wall_time >= limits.seconds),
    }
    if status == cp_model.INFEASIBLE:
        return Solution((), inf, inf, 0.0, "infeasible", statistics)
    best, objective = (), inf
    for choice in _found(model, solver.response_proto.solution, start):
        cost, _, allowed = model.evaluate(choice)
        if allowed and cost < objective:
            best, objective = choice, cost
    proven = solver.best_objective_bound / model.scale
    bound = min(model.constant + max(proven, 0.0), objective)
    gap = relative_gap(objective, bound)
    answer: Status = "optimal" if gap <= OPTIMAL_GAP else "feasible" if best else "timeout"
    return Solution(best, objective, bound, gap, answer, statistics)


def _found(
    model: MarginalModel, values: list[int], start: tuple[int, ...] | None
) -> Iterator[tuple[int, ...]]:
    if start is not None:
        yield start
    if values:
        x = np.array(list(values)[: model.num_x])
        yield tuple((np.flatnonzero(x) - model.offsets[:-1]).tolist())


def _program(model: MarginalModel, start: tuple[int, ...] | None) -> CpModel:
    from ortools.sat.python import cp_model

    program = cp_model.CpModel()
    proto, costs = program.proto, model.objective
    for most in model.upper_bounds.tolist():
        proto.variables.add().domain.extend([0, most])
    for row in model.integer_rows():
        linear = proto.constraints.add().linear
        linear.vars.extend(row.columns)
        linear.coeffs.extend(row.values)
        linear.domain.extend(
            [
                cp_model.INT_MIN if row.lower == -inf else int(row.lower),
                cp_model.INT_MAX if row.upper == inf else int(row.upper),
            ]
        )
    used = np.flatnonzero(costs)
    proto.floating_point_objective.vars.extend(used.tolist())
    proto.floating_point_objective.coeffs.extend(costs[used].tolist())
    if start is not None:
        proto.solution_hint.vars.extend(range(model.num_x))
        chosen = np.zeros(model.num_x, dtype=np.int64)
        chosen[model.offsets[:-1] + np.array(start, dtype=np.int64)] = 1
        proto.solution_hint.values.extend(chosen.tolist())
    return program
