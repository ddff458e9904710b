"""Where the time went: a tree of phases, passes, solver work, verifier, parser and output, as text
or JSON.

The text follows `mlir-opt --mlir-timing`; the JSON has the same fields as that of MLIR.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from shardopt.support.spans import Seconds

if TYPE_CHECKING:
    from shardopt.pipeline.manager import PipelineResult, StepResult

RULE = "===" + "-" * 73 + "==="


@dataclass(frozen=True)
class Timed:
    """A named share of the time, with the parts that were measured inside."""

    name: str
    time: Seconds
    parts: tuple[Timed, ...] = ()


def timing_tree(
    result: PipelineResult, before: Sequence[Timed] = (), after: Sequence[Timed] = ()
) -> tuple[Timed, ...]:
    """The work of a run in its order; `before` and `after` are what happened around the passes,
    such as parsing."""
    verifier = Timed("Verifier", _sum(step.verify_time for step in result.steps))
    return (*before, *_grouped(result.steps, 0), verifier, *after)


def merged(trees: Iterable[tuple[Timed, ...]]) -> tuple[Timed, ...]:
    """Several runs of one pipeline as one: equal rows add up."""
    rows: dict[str, list[Timed]] = {}
    for tree in trees:
        seen: dict[str, int] = {}
        for row in tree:  # a pass that stands twice in a pipeline has two rows
            seen[row.name] = seen.get(row.name, 0) + 1
            rows.setdefault(f"{row.name}#{seen[row.name]}", []).append(row)
    return tuple(
        Timed(same[0].name, _sum(row.time for row in same), merged(row.parts for row in same))
        for same in rows.values()
    )


def with_rest(tree: Sequence[Timed], whole: Seconds) -> tuple[Timed, ...]:
    """The rows with one more for what is in none of them: starting up, dumps, statistics."""
    return (*tree, Timed("Rest", whole - _sum(row.time for row in tree)))


def timing_list(tree: Sequence[Timed]) -> tuple[Timed, ...]:
    """All rows by name with their own time, without that of their parts; the longest first."""
    by_name: dict[str, Seconds] = {}
    for row in _all_rows(tree):
        own = row.time - _sum(part.time for part in row.parts)
        # Phases and nests are no more than their parts.
        if not row.parts or own.wall > 1e-7 * row.time.wall:
            by_name[row.name] = by_name.get(row.name, Seconds()) + own
    return tuple(
        Timed(name, time)
        for name, time in sorted(by_name.items(), key=lambda item: (-item[1].wall, item[0]))
    )


def timing_report(tree: Sequence[Timed], display: Literal["tree", "list"] = "tree") -> str:
    """The report as text."""
    rows = timing_list(tree) if display == "list" else tuple(tree)
    total = _sum(row.time for row in tree)
    title = "... Execution time report ...".center(len(RULE)).rstrip()
    lines = [
        RULE,
        title,
        RULE,
        f"  Total Execution Time: {total.wall:.4f} seconds",
        "",
        "  ----Wall Time----  ----CPU Time-----  ----Name----",
    ]
    for depth, row in [*_with_depth(rows, 0), (0, Timed("Total", total))]:
        wall = _with_share(row.time.wall, total.wall)
        lines.append(f"  {wall}  {_with_share(row.time.cpu, total.cpu)}  {'  ' * depth}{row.name}")
    return "\n".join(lines)


def timing_json(tree: Sequence[Timed], display: Literal["tree", "list"] = "tree") -> str:
    """The report as JSON: a list of `{"wall": {"duration": seconds, "percentage": …}, "cpu": {…},
    "name": …, "passes": […]}`."""
    total = _sum(row.time for row in tree)
    rows = timing_list(tree) if display == "list" else tuple(tree)
    return json.dumps([_to_json(row, total) for row in (*rows, Timed("Total", total))], indent=1)


def _to_json(row: Timed, total: Seconds) -> dict[str, Any]:
    def shares(seconds: float, whole: float) -> dict[str, float]:
        share = round(_share(seconds, whole), 1)
        return {"duration": round(seconds, 6), "percentage": share}

    wall, cpu = shares(row.time.wall, total.wall), shares(row.time.cpu, total.cpu)
    fields: dict[str, Any] = {"wall": wall, "cpu": cpu, "name": row.name}
    if row.parts:
        fields["passes"] = [_to_json(part, total) for part in row.parts]
    return fields


def _grouped(steps: Iterable[StepResult], depth: int) -> tuple[Timed, ...]:
    """Rows of consecutive steps; those in one phase or nest (at `depth` of their groups) form one
    row with parts."""
    rows: list[Timed] = []
    for group, inside in groupby(steps, key=lambda step: step.leaf.groups[depth : depth + 1]):
        if not group:
            rows += [_row(step) for step in inside]
            continue
        parts = _grouped(inside, depth + 1)
        rows.append(Timed(group[0], _sum(part.time for part in parts), parts))
    return tuple(rows)


def _row(step: StepResult) -> Timed:
    parts = tuple(Timed(name, time) for name, time in step.spans.items())
    return Timed(str(step.leaf.step), step.time, parts)


def _sum(times: Iterable[Seconds]) -> Seconds:
    return sum(times, Seconds())


def _share(seconds: float, total: float) -> float:
    return 100 * seconds / total if total else 0.0


def _with_share(seconds: float, total: float) -> str:
    return f"{seconds:8.4f} ({_share(seconds, total):5.1f}%)"


def _all_rows(tree: Iterable[Timed]) -> Iterable[Timed]:
    return (row for _, row in _with_depth(tree, 0))


def _with_depth(tree: Iterable[Timed], depth: int) -> Iterable[tuple[int, Timed]]:
    for row in tree:
        yield depth, row
        yield from _with_depth(row.parts, depth + 1)
