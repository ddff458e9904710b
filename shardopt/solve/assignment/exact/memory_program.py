"""The marginal linearisation within a memory limit, as an integer program for CP-SAT.

A linear program mixes a fast plan with a small one, so that within memory it is often 20 to 50 %
below the optimum, and what branches on linear programs closes that slowly. CP-SAT learns a clause
from each dead end instead (lazy clause generation; Ohrimenko, Stuckey and Codish 2009), with linear
programs as one source of bounds.

All columns are integers. The limit is a row for each set of segments that are in memory together
and in no larger one."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np

from shardopt.solve.assignment.exact.marginal_model import Answer, MarginalModel
from shardopt.solve.assignment.limits import SearchLimits

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel

# Work of a second of CP-SAT's deterministic time, which takes one to two seconds of a core.
_WORK_PER_SECOND = 750_000_000
_RANDOM_SEED = 1


def solve_by_cp_sat(
    model: MarginalModel, kept: np.ndarray, hint: tuple[int, ...] | None, limits: SearchLimits
) -> Answer:
    """Least cost with the columns `kept` (bool `[columns]`) alone. The search looks near `hint`, an
    assignment that need not be allowed, first."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = _RANDOM_SEED
    # The linear programs have all rows of the polytope, not those alone that look useful.
    solver.parameters.linearization_level = 2
    solver.parameters.relative_gap_limit = limits.gap_tolerance
    if limits.seconds is not None:
        solver.parameters.max_time_in_seconds = max(limits.seconds, 1e-3)
    if limits.work is not None:
        solver.parameters.max_deterministic_time = limits.work / _WORK_PER_SECOND
    status = solver.solve(_program(model, kept, hint))
    work = int(solver.response_proto.deterministic_time * _WORK_PER_SECOND)
    if status == cp_model.INFEASIBLE:
        return Answer("infeasible", None, inf, work=work)
    if status == cp_model.MODEL_INVALID:
        raise RuntimeError(f"CP-SAT failed: {solver.solution_info()}")
    late = limits.seconds is not None and solver.wall_time >= limits.seconds
    values = list(solver.response_proto.solution)
    x = np.array(values[: model.num_x], dtype=np.float64) if values else None
    bound = max(solver.best_objective_bound / model.scale, model.constant)
    if status == cp_model.OPTIMAL:
        return Answer("optimal", x, bound, work=work)
    return Answer("limit", x, bound, late, work)


def _program(model: MarginalModel, kept: np.ndarray, hint: tuple[int, ...] | None) -> CpModel:
    from ortools.sat.python import cp_model

    program = cp_model.CpModel()
    proto, costs = program.proto, model.objective
    for most in kept.astype(int).tolist():
        proto.variables.add().domain.extend([0, most])
    for row in model.integer_rows():
        linear = proto.constraints.add().linear
        linear.vars.extend(row.columns)
        linear.coeffs.extend(row.values)
        lower = cp_model.INT_MIN if row.lower == -inf else int(row.lower)
        upper = cp_model.INT_MAX if row.upper == inf else int(row.upper)
        linear.domain.extend([lower, upper])
    used = np.flatnonzero(costs)
    proto.floating_point_objective.vars.extend(used.tolist())
    proto.floating_point_objective.coeffs.extend(costs[used].tolist())
    proto.floating_point_objective.offset = model.constant * model.scale
    if hint is not None:
        chosen = np.zeros(model.num_x, dtype=np.int64)
        chosen[model.offsets[:-1] + np.array(hint, dtype=np.int64)] = 1
        proto.solution_hint.vars.extend(range(model.num_x))
        proto.solution_hint.values.extend(chosen.tolist())
    return program
