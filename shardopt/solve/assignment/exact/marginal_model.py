"""The marginal linearisation of an assignment problem, as a model for HiGHS or SCIP through
`ortools.math_opt`.

Binary x[v, s] with sum 1 for each node; continuous y[e, p, q] for the *allowed* pairs of each edge
only, whose row sums are x[u, p] and whose column sums are x[v, q]. Its LP relaxation is the local
polytope, which is within a few percent of the optimum, where the product form e >= x_p + x_q - 1
bounds almost nothing. Memory rows are added by the caller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from shardopt.solve.assignment.limits import NO_LIMITS, SearchLimits
from shardopt.solve.assignment.problem import Evaluation, Problem, evaluate

if TYPE_CHECKING:
    from ortools.math_opt import model_pb2

# HiGHS compares against absolute tolerances near 1e-6, so the objective should range up to about
# this.
_OBJECTIVE_RANGE = 1e6

_RELATIVE_GAP = 1e-9

# What solvers take in table entries: for each entry of the matrix in an iteration of the simplex
# method, and for a node of the search at least. Measured with 20,000 to 50,000 entries, so that a
# second of a core is about `WORK_PER_SECOND`.
_ITERATION_WORK, _NODE_WORK = 2, 100_000
# SCIP's iterations in integer programs take 1.8 to 1.9 times as long as those.
_SCIP_ITERATION_WORK = 4
# Solvers can be told how many nodes to look at, not for how many iterations: a node took 0.2 to 1.0
# of those of the first relaxation.
_NODE_SHARE = 0.5
_MOST_COUNTED = 2**31 - 1  # solvers count in 32 bits

# Of integrality; a looser one understates the objective by that much of its range.
_FEASIBILITY_TOLERANCE = 1e-9
# Of reduced costs, in the scaled objective: far more than rounding adds up to over all columns.
_FIXING_TOLERANCE = 1e-2
_RANDOM_SEED = 1


@dataclass(frozen=True)
class Cuts:
    """Rows beyond the marginal polytope: memory at `times`, and sets of x columns that must not all
    be chosen."""

    times: tuple[int, ...] = ()
    covers: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, eq=False)
class Answer:
    """What the solver said. `x` is float64 over all (node, strategy) columns, None without a point;
    `bound` is unscaled. `late` says that a clock ended it, `work` what it took."""

    status: Literal["optimal", "infeasible", "limit"]
    x: np.ndarray | None
    bound: float
    late: bool = False
    work: int = 0


class IntegerRow(NamedTuple):
    """`lower` <= the sum of `values` times `columns` <= `upper`; all but infinite bounds are whole
    numbers."""

    columns: list[int]
    values: list[int]
    lower: float
    upper: float


class PairTable(NamedTuple):
    """Costs of an edge from u to v by classes of strategies: strategy s of u is row `rows[s]` of
    `seconds`, and strategy t of v is column `columns[t]`."""

    u: int
    v: int
    rows: np.ndarray
    columns: np.ndarray
    seconds: np.ndarray


class MarginalModel:
    """Columns and rows of one problem, reused over the rounds of lazily added rows."""

    integers_by_scip = False
    # Worth it where an assignment is known whose cost is close to the linear program's.
    fixes_columns = False
    # Shares of the bound above it, within which to search first.
    rooms: Sequence[float] = ()

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._relaxation = 0  # iterations of the longest linear program so far
        # Of the linear program with the best bound: that, scaled, and the reduced costs.
        self._priced: tuple[float, np.ndarray] | None = None
        self.tables = self._tables()
        self.sizes = [len(cost) for cost in problem.costs]
        self.offsets = np.concatenate([[0], np.cumsum(self.sizes, dtype=np.int64)])
        self.num_x = int(self.offsets[-1])
        self._build_objective()
        self._build_polytope()
        self._build_segments()

    def solve(
        self,
        cuts: Cuts,
        integer: bool,
        limits: SearchLimits = NO_LIMITS,
        cutoff: float = np.inf,
    ) -> Answer:
        """Minimise over the polytope and the cuts; x is binary if `integer`, else anywhere in [0,
        1]. An integer program may leave out what costs more than `cutoff`, the cost of an
        assignment that is allowed: columns are fixed by their reduced costs in a linear program
        before (Dantzig, Fulkerson and Johnson 1954), whose cuts must be among these.

        A budget of work ends integer programs at a number of nodes that is worth it, once their
        first relaxation is solved."""
        from ortools.math_opt.python import mathopt

        kept = self._within(cutoff) if integer else ~self._forbidden
        model = mathopt.Model.from_model_proto(self._proto(cuts, integer, kept))
        gap = max(limits.gap_tolerance, _RELATIVE_GAP)
        parameters = mathopt.SolveParameters(random_seed=_RANDOM_SEED, relative_gap_tolerance=gap)
        parameters.highs.int_options["threads"] = 1
        parameters.highs.string_options["parallel"] = "off"
        parameters.highs.double_options["mip_feasibility_tolerance"] = _FEASIBILITY_TOLERANCE
        parameters.gscip.real_params["numerics/feastol"] = _FEASIBILITY_TOLERANCE
        by_scip = integer and self.integers_by_scip
        iteration_work = self._iteration_work(by_scip)
        if limits.seconds is not None:
            parameters.time_limit = timedelta(seconds=max(limits.seconds, 1e-3))
        if limits.work is not None:
            node_work = int(_NODE_SHARE * self._relaxation) * iteration_work + _NODE_WORK
            most = limits.work // (node_work if integer else iteration_work)
            most = min(max(most, 1), _MOST_COUNTED)
            parameters.node_limit = most if integer else None
            parameters.iteration_limit = None if integer else most
        # Reading y, duals and the basis back costs as long as solving.
        variables = list(model.variables())
        x_variables = variables[: self.num_x]
        prices = self.fixes_columns and not integer
        filters = mathopt.ModelSolveParameters(
            variable_values_filter=mathopt.VariableFilter(filtered_items=x_variables),
            dual_values_filter=mathopt.LinearConstraintFilter(filtered_items=()),
            reduced_costs_filter=(
                mathopt.VariableFilter() if prices else mathopt.VariableFilter(filtered_items=())
            ),
        )
        solver = mathopt.SolverType.GSCIP if by_scip else mathopt.SolverType.HIGHS
        result = mathopt.solve(model, solver, params=parameters, model_params=filters)

        iterations, nodes = result.solve_stats.simplex_iterations, result.solve_stats.node_count
        if not integer:
            self._relaxation = max(self._relaxation, iterations)
        work = iterations * iteration_work + nodes * _NODE_WORK
        late = result.termination.limit == mathopt.Limit.TIME

        reason, reasons = result.termination.reason, mathopt.TerminationReason
        # All costs are finite, so the problem is bounded: what may be either is infeasible.
        if reason in (reasons.INFEASIBLE, reasons.INFEASIBLE_OR_UNBOUNDED):
            return Answer("infeasible", None, np.inf, work=work)
        if reason not in (reasons.OPTIMAL, reasons.FEASIBLE, reasons.NO_SOLUTION_FOUND):
            raise RuntimeError(f"{solver.name} failed: {result.termination}")
        x = (
            np.array(result.variable_values(x_variables))
            if result.has_primal_feasible_solution()
            else None
        )
        bound = result.termination.objective_bounds.dual_bound
        if reason == reasons.OPTIMAL:
            if prices and result.has_dual_feasible_solution():
                self._price(bound, np.array(result.reduced_costs(variables)))
            return Answer("optimal", x, bound / self.scale + self.constant, work=work)
        # An LP stopped early reports no valid bound, and a MIP stopped before its root +inf.
        stopped = bound / self.scale + self.constant if integer and np.isfinite(bound) else -np.inf
        return Answer("limit", x, stopped, late, work)

    @property
    def objective(self) -> np.ndarray:
        """Scaled costs of the columns, none of them negative: float64 `[columns]`."""
        return self._objective

    def integer_rows(self) -> Iterator[IntegerRow]:
        """The rows of the polytope, then those of memory at the `binding_times`."""
        order = np.argsort(self._rows, kind="stable")
        columns, values = self._columns[order].tolist(), np.rint(self._values[order]).astype(int)
        ends = np.searchsorted(self._rows[order], np.arange(self.num_rows + 1)).tolist()
        bounds = zip(self._lower.tolist(), self._upper.tolist(), strict=True)
        for (begin, end), (lower, upper) in zip(pairwise(ends), bounds, strict=True):
            yield IntegerRow(columns[begin:end], values[begin:end].tolist(), lower, upper)
        for time in self.binding_times:
            used, size = self._held(time)
            # In the largest unit that divides all of them.
            unit = int(np.gcd.reduce(size))
            upper = (self.problem.memory_limit or 0) // unit
            yield IntegerRow(used.tolist(), (size // unit).tolist(), -np.inf, upper)

    @cached_property
    def binding_times(self) -> tuple[int, ...]:
        """All of `find_binding_times`."""
        return tuple(self.find_binding_times())

    def find_binding_times(self) -> Iterator[int]:
        """A time of each largest set of segments that are in memory together, where these can
        exceed the limit, the first first. Each takes about as long as there are segments."""
        limit = self.problem.memory_limit
        return (
            time for time in self._fullest_times() if limit is not None and self._most(time) > limit
        )

    def _fullest_times(self) -> Iterator[int]:
        starts, stops = set(self._segment_lo.tolist()), set(self._segment_hi.tolist())
        last: int | None = None
        for time in sorted(starts | stops):
            if time in stops and last is not None:
                yield last
                last = None
            if time in starts:
                last = time

    def _most(self, time: int) -> int:
        """Bytes with each node at its largest."""
        used, size = self._held(time)
        most = np.zeros(len(self.sizes), dtype=np.int64)
        np.maximum.at(most, np.searchsorted(self.offsets, used, side="right") - 1, size)
        return int(most.sum())

    def _price(self, bound: float, reduced: np.ndarray) -> None:
        if self._priced is None or bound >= self._priced[0]:
            self._priced = bound, reduced

    def _within(self, cutoff: float) -> np.ndarray:
        """The columns that an assignment of at most this cost can use: bool `[columns]`."""
        if self._priced is None:
            return ~self._forbidden
        bound, reduced = self._priced
        room = (cutoff - self.constant) * self.scale - bound
        return ~self._forbidden & (reduced <= room + _FIXING_TOLERANCE)

    def _iteration_work(self, by_scip: bool) -> int:
        return (_SCIP_ITERATION_WORK if by_scip else _ITERATION_WORK) * len(self._values)

    def evaluate(self, choice: Sequence[int]) -> Evaluation:
        return evaluate(self.problem, choice)

    def usage(self, x: np.ndarray) -> np.ndarray:
        """Bytes at each time, `[times]`, for a fractional (float64) or a chosen (int64) x; exact
        for int64."""
        change = np.zeros(self.problem.num_times + 1, dtype=x.dtype)
        if len(self._segment_starts):
            total = np.add.reduceat(
                self._segment_bytes * x[self._segment_columns], self._segment_starts
            )
            np.add.at(change, self._segment_lo, total)
            np.subtract.at(change, self._segment_hi, total)
        return np.cumsum(change)[:-1]

    def cover(self, time: int, columns: np.ndarray) -> tuple[int, ...]:
        """The fewest of the chosen `columns` that together exceed the limit at `time`."""
        used, size = self._row(time)
        total = np.zeros(self.num_x, dtype=np.int64)
        np.add.at(total, used, size)
        largest_first = columns[np.argsort(-total[columns], kind="stable")]
        assert self.problem.memory_limit is not None
        count = (
            int(
                np.searchsorted(
                    np.cumsum(total[largest_first]), self.problem.memory_limit, side="right"
                )
            )
            + 1
        )
        return tuple(sorted(largest_first[:count].tolist()))

    def _tables(self) -> Sequence[PairTable]:
        every = [np.arange(len(cost)) for cost in self.problem.costs]
        return [PairTable(e.u, e.v, every[e.u], every[e.v], e.cost) for e in self.problem.edges]

    def _steps(self) -> np.ndarray:
        """Costs of columns behind those of pairs."""
        return np.zeros(0)

    def _build_objective(self) -> None:
        # Only differences matter to the solver, and without offsets they keep more digits.
        parts = [
            *self.problem.costs,
            *(table.seconds[table.seconds < np.inf] for table in self.tables),
        ]
        least = [float(part.min(initial=np.inf)) for part in parts]
        self.constant = sum(low for low in least if low < np.inf)
        shifted = [
            part - (low if low < np.inf else 0.0) for part, low in zip(parts, least, strict=True)
        ]
        steps = self._steps()
        self._objective = np.concatenate([np.zeros(0), *shifted, steps])
        self._forbidden = ~(self._objective < np.inf)
        self._objective[self._forbidden] = 0.0
        span = float(steps.sum())
        span += sum(float(part.max(initial=0.0, where=part < np.inf)) for part in shifted)
        self.scale = _OBJECTIVE_RANGE / span if span > 0 else 1.0
        self._objective *= self.scale

    def _build_polytope(self) -> None:
        """Coordinates of the equality rows: one for each node, then one for each class of
        strategies at each edge end."""
        num_nodes = self.problem.num_nodes
        rows = [np.repeat(np.arange(num_nodes), self.sizes)]
        columns = [np.arange(self.num_x)]
        values = [np.ones(self.num_x)]
        num_rows, num_columns = num_nodes, self.num_x
        for table in self.tables:
            p, q = np.nonzero(table.seconds < np.inf)
            pairs = np.arange(num_columns, num_columns + len(p))
            ends = (table.u, p, table.rows), (table.v, q, table.columns)
            for (node, classes, class_of), count in zip(ends, table.seconds.shape, strict=True):
                size = self.sizes[node]
                rows += [num_rows + classes, num_rows + class_of]
                columns += [pairs, self.offsets[node] + np.arange(size)]
                values += [np.ones(len(p)), -np.ones(size)]
                num_rows += count
            num_columns += len(p)
        self._rows, self._columns = np.concatenate(rows), np.concatenate(columns)
        self._values = np.concatenate(values)
        self.num_rows, self.num_columns = num_rows, num_columns
        self._upper = np.concatenate([np.ones(num_nodes), np.zeros(num_rows - num_nodes)])
        self._lower = self._upper

    def _build_segments(self) -> None:
        """All segments flat: x columns and bytes, one run for each segment."""
        segments = [
            (node, usage)
            for node, usages in enumerate(self.problem.usages or ())
            for usage in usages
            if usage.lo < usage.hi
        ]
        self._segment_lo = np.array([usage.lo for _, usage in segments], dtype=np.int64)
        self._segment_hi = np.array([usage.hi for _, usage in segments], dtype=np.int64)
        lengths = np.array([self.sizes[node] for node, _ in segments], dtype=np.int64)
        self._segment_starts = np.cumsum(lengths) - lengths
        self._segment_of_entry = np.repeat(np.arange(len(segments)), lengths)
        empty = np.zeros(0, dtype=np.int64)
        self._segment_bytes = np.concatenate([empty, *(usage.bytes for _, usage in segments)])
        columns = [self.offsets[node] + np.arange(self.sizes[node]) for node, _ in segments]
        self._segment_columns = np.concatenate([empty, *columns])

    def _row(self, time: int) -> tuple[np.ndarray, np.ndarray]:
        """x columns (perhaps repeated) and bytes of the memory row at a time."""
        live = (self._segment_lo <= time) & (time < self._segment_hi)
        entries = live[self._segment_of_entry]
        return self._segment_columns[entries], self._segment_bytes[entries]

    def _held(self, time: int) -> tuple[np.ndarray, np.ndarray]:
        """As `_row`, each column once."""
        entries, size = self._row(time)
        used, place = np.unique(entries, return_inverse=True)
        total = np.zeros(len(used), dtype=np.int64)
        np.add.at(total, place, size)
        return used, total

    def _proto(self, cuts: Cuts, integer: bool, kept: np.ndarray) -> model_pb2.ModelProto:
        """Filled with whole arrays: adding variables one by one takes longer than solving the
        model. Columns that are not `kept` are 0."""
        from ortools.math_opt import model_pb2

        rows, columns, values = [self._rows], [self._columns], [self._values]
        limit = max(self.problem.memory_limit or 0, 1)
        next_row = self.num_rows
        upper = self._upper.tolist()
        for time in cuts.times:
            used, size = self._held(time)
            rows.append(np.full(len(used), next_row))
            columns.append(used)
            values.append(size / limit)
            # Bytes as shares of the limit: HiGHS's tolerances are absolute.
            upper.append((self.problem.memory_limit or 0) / limit)
            next_row += 1
        for cover in cuts.covers:
            rows.append(np.full(len(cover), next_row))
            columns.append(np.array(cover))
            values.append(np.ones(len(cover)))
            upper.append(len(cover) - 1.0)
            next_row += 1
        lower = self._lower.tolist() + [-np.inf] * (next_row - self.num_rows)
        entries = rows, columns, values
        return self._fill(model_pb2.ModelProto(), integer, kept, lower, upper, entries)

    def _fill(
        self,
        proto: model_pb2.ModelProto,
        integer: bool,
        kept: np.ndarray,
        lower: list[float],
        upper: list[float],
        entries: tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]],
    ) -> model_pb2.ModelProto:
        proto.variables.ids.extend(range(self.num_columns))
        proto.variables.lower_bounds.extend([0.0] * self.num_columns)
        proto.variables.upper_bounds.extend(np.where(kept, 1.0, 0.0))
        num_integers = self.num_x if integer else 0
        proto.variables.integers.extend(
            [True] * num_integers + [False] * (self.num_columns - num_integers)
        )
        used = np.flatnonzero(self._objective)
        proto.objective.linear_coefficients.ids.extend(used)
        proto.objective.linear_coefficients.values.extend(self._objective[used])
        proto.linear_constraints.ids.extend(range(len(upper)))
        proto.linear_constraints.lower_bounds.extend(lower)
        proto.linear_constraints.upper_bounds.extend(upper)
        rows, columns, values = (np.concatenate(part) for part in entries)
        order = np.lexsort((columns, rows))  # math_opt wants row-major entries
        order = order[values[order] != 0]
        proto.linear_constraint_matrix.row_ids.extend(rows[order])
        proto.linear_constraint_matrix.column_ids.extend(columns[order])
        proto.linear_constraint_matrix.coefficients.extend(values[order])
        return proto
