"""`shardopt solve` on the public instances of the ASPLOS/EuroSys 2025 contest, within the contest's
time limits.

    python -m benchmarks.solve.iopddl FOLDER [--instances A G M S] [--time-share 1.0]

FOLDER holds `asplos-2025-iopddl-A.json.gz` and so on, from github.com/google/iopddl. Each instance
is solved in a process of its own, one after the other; the assignment it prints is evaluated here,
on the original file, by code that shares nothing with the solver. Prints a table in markdown. Exit
code 1 if an assignment is not allowed or a limit not kept."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

# Seconds that the contest allowed (8 cores), and what its best team paid: github.com/google/iopddl,
# README.
CONTEST = {
    "A": (60, 6_548_641_531),
    "G": (120, 217_039),
    "M": (180, 49_928_460_991),
    "S": (240, 1_534_613_444),
}
_FORBIDDEN = 10**18


@dataclass(frozen=True)
class Row:
    name: str
    limit: float
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    cost: int | None  # None: not allowed, for the reason in `status`
    bound: float
    status: str


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--instances", nargs="+", default=list(CONTEST), choices=CONTEST)
    parser.add_argument(
        "--time-share", type=float, default=1.0, help="of the contest's time limits (default 1)"
    )
    args = parser.parse_args()
    load = os.getloadavg()[0]
    rows = []
    for name in args.instances:
        rows.append(
            measure(name, args.folder / f"asplos-2025-iopddl-{name}.json.gz", args.time_share)
        )
        print(markdown(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(markdown(rows))
    print(
        f"\nload average {load:.1f} before, {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} "
        "cores"
    )
    return 0 if all(row.cost is not None and row.seconds <= row.limit for row in rows) else 1


def measure(name: str, path: Path, time_share: float) -> Row:
    limit = CONTEST[name][0] * time_share
    command = [
        sys.executable,
        "-m",
        "shardopt.tools.shardopt",
        "solve",
        str(path),
        "--time-limit",
        str(limit),
    ]
    begin = monotonic()
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(command, stdout=output)
        _, code, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(code)
        seconds = monotonic() - begin
        output.seek(0)
        text = output.read()
    cpu, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
    if child.returncode:
        return Row(
            name, limit, seconds, cpu, peak, None, float("nan"), f"exit code {child.returncode}"
        )
    cost, problem = evaluate(
        json.loads(gzip.decompress(path.read_bytes())), json.loads(text.splitlines()[-1])
    )
    bound, status = (_field(text, label) for label in ("bound", "status"))
    return Row(name, limit, seconds, cpu, peak, cost, float(bound), problem or status)


def evaluate(document: Any, choice: list[int]) -> tuple[int | None, str]:
    """The cost of an assignment in whole numbers, or None and why it is not allowed."""
    problem = document["problem"]
    nodes, edges = problem["nodes"], problem["edges"]
    if len(choice) != len(nodes["costs"]):
        return None, f"{len(choice)} choices for {len(nodes['costs'])} nodes"
    total = sum(costs[strategy] for costs, strategy in zip(nodes["costs"], choice, strict=True))
    for (u, v), costs in zip(edges["nodes"], edges["costs"], strict=True):
        total += costs[choice[u] * len(nodes["costs"][v]) + choice[v]]
    if total >= _FORBIDDEN:
        return None, "a forbidden entry is used"
    changes: dict[int, int] = {}
    for (lo, hi), usages, strategy in zip(nodes["intervals"], nodes["usages"], choice, strict=True):
        if lo < hi:
            changes[lo] = changes.get(lo, 0) + usages[strategy]
            changes[hi] = changes.get(hi, 0) - usages[strategy]
    live = peak = 0
    for time in sorted(changes):
        live += changes[time]
        peak = max(peak, live)
    limit = problem.get("usage_limit")
    if limit is not None and peak > limit:
        return None, f"{peak} bytes at once, the limit is {limit}"
    return total, ""


def _field(text: str, label: str) -> str:
    """The value in the row `label` of the printed table."""
    match = re.search(rf"^\W*{label}\W+(\S.*?)\s*\W?$", text, re.MULTILINE)
    assert match is not None, f"no {label} in the output"
    return match[1]


def markdown(rows: list[Row]) -> str:
    lines = [
        "| instance | limit | wall | CPU | peak memory | cost | bound | gap | of the best "
        "team's | status |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cost, gap, ratio = "none", "", ""
        if row.cost is not None:
            cost = f"{row.cost:,}"
            gap = f"{(row.cost - row.bound) / row.cost:.3%}"
            ratio = f"{row.cost / CONTEST[row.name][1]:.5f}"
        lines.append(
            f"| {row.name} | {row.limit:.0f} s | {row.seconds:.1f} s | {row.cpu_seconds:.1f} s | "
            f"{row.peak_bytes / 2**30:.2f} GiB | {cost} | {row.bound:,.0f} | {gap} | {ratio} | "
            f"{row.status} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
