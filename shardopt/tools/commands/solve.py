"""`shardopt solve`: an assignment problem in the contest's JSON, with cost, bound and gap.

The assignment is the last line of standard output, so that `tail -n 1` hands it to another program.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from shardopt.support.errors import UserError
from shardopt.tools.common import console

if TYPE_CHECKING:
    from rich.table import Table

    from shardopt.solve.assignment.problem import Problem, Solution

_SECONDS_TO_CHECK = 60.0  # for a second opinion, without a time limit
_TOLERANCE = 1e-6  # relative, between two solvers


def add_solve(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Solve an assignment problem in the JSON format of the ASPLOS/EuroSys 2025 contest on "
        "intra-operator parallelism. The assignment is the last line printed."
    )
    parser.add_argument("problem", type=Path, metavar="FILE", help=".json or .json.gz")
    parser.add_argument(
        "--time-limit", type=_seconds, metavar="S", help="seconds, from reading the file to the end"
    )
    parser.add_argument(
        "--gap",
        type=float,
        default=0.0,
        metavar="G",
        help="stop when proven this close (default 0)",
    )
    parser.add_argument(
        "--cross-check", choices=("cp-sat",), help="solve by another solver as well, and compare"
    )
    parser.set_defaults(run=_run)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, found '{text}'")
    return seconds


def _run(args: argparse.Namespace) -> None:
    from shardopt.solve.assignment.contest import format_solution, read_contest
    from shardopt.solve.assignment.limits import SearchLimits
    from shardopt.solve.assignment.search.sharding_ilp import solve

    begin = monotonic()
    problem = read_contest(args.problem)
    read = monotonic() - begin
    limits = SearchLimits(args.time_limit, args.gap)
    with _Progress() as tell:
        solution = solve(problem, limits.since(begin), progress=tell)
    if not solution.choice and problem.num_nodes:
        raise UserError(f"{args.problem}: {solution.status}: {solution.statistics['reason']}")
    console().print(_table(args.problem.name, solution, read, monotonic() - begin))
    if args.cross_check is not None:
        _cross_check(problem, solution, limits.seconds or _SECONDS_TO_CHECK)
    print(format_solution(solution.choice))


class _Progress:
    """One line on a terminal with the best cost and bound so far; nothing elsewhere."""

    def __enter__(self) -> Callable[[float, float], None] | None:
        from rich.console import Console

        terminal = Console(stderr=True)
        if not terminal.is_terminal:
            self._status = None
            return None
        self._status = terminal.status("solving")
        self._status.start()
        return self._tell

    def _tell(self, objective: float, bound: float) -> None:
        if self._status is not None:
            gap = (
                f"{(objective - bound) / abs(objective):.4%}"
                if 0 < abs(objective) < inf
                else "unknown"
            )
            self._status.update(f"solving: cost {objective:.12g}, bound {bound:.12g}, gap {gap}")

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()


def _table(name: str, solution: Solution, read: float, total: float) -> Table:
    from rich.table import Table

    table = Table("", "value", title=name)
    table.columns[1].justify = "right"
    struck = " (time limit)" if solution.statistics.get("time_limit_struck") else ""
    rows = {
        "cost": f"{solution.objective:.15g}",
        "bound": f"{solution.bound:.15g}",
        "gap": f"{solution.gap:.3g}",
        "status": solution.status + struck,
        "nodes, edges": f"{solution.statistics['nodes']}, {solution.statistics['edges']}",
        "after presolve": f"{solution.statistics['residual_nodes']}, "
        f"{solution.statistics['residual_edges']}",
        "seconds to read": f"{read:.2f}",
        "seconds to presolve": f"{solution.statistics['presolve_seconds']:.2f}",
        "seconds in all": f"{total:.2f}",
    }
    for label, value in rows.items():
        table.add_row(label, value)
    return table


def _cross_check(problem: Problem, solution: Solution, seconds: float) -> None:
    """Raises UserError if the other solver contradicts: a cheaper answer than the bound, or a bound
    above the cost."""
    from shardopt.solve.assignment.exact.cp_sat import solve_cp_sat

    other = solve_cp_sat(problem, time_limit_seconds=seconds)
    console().print(
        f"cp-sat: {other.status}, cost {other.objective:.15g}, bound {other.bound:.15g}"
    )
    slack = _TOLERANCE * abs(solution.objective)
    if (
        other.status == "infeasible"
        or other.objective < solution.bound - slack
        or other.bound > solution.objective + slack
    ):
        raise UserError(
            f"cp-sat contradicts: cost {solution.objective:.15g} and bound {solution.bound:.15g} "
            f"expected, found cost {other.objective:.15g} and bound {other.bound:.15g}"
        )
