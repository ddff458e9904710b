"""The stage DP and every baseline planner of stages: the predicted step of each, under one cost
model.

    python -m benchmarks.solve.inter_op MODULE… --cluster p3.16xlarge:2x8 [--microbatches 16]
        [--layers 8] [--planners dp,piper] [--json results.json]

One row a module: the step that the simulator predicts for the plan of the stage DP, and that of
each baseline relative to it. A dash is a planner that has no plan; its reason stands below the
table. The planners of a module share a cache, which is new for each module. A planner that ends in
anything but a plan or a diagnostic gives exit code 2, one whose plan is shorter than that of the
stage DP by more than the tolerance gives exit code 1."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.frontend.plan_runs import run_case
from shardopt.solve.stages.baselines.registry import INTER_OP

_FIRST = "dp"
# Plans whose predicted steps differ by less are alike to the planner (`ALIKE` in `plan_search.py`),
# and the shard phase stops as close to the optimum as its own tolerance says.
_TOLERANCE = 0.02

Row = Mapping[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="+", type=Path, metavar="MODULE")
    parser.add_argument("--cluster", required=True, metavar="FILE|PRESET[:HxD]")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--batch-args", default="auto", metavar="I,J[:DIM]|auto")
    parser.add_argument("--layers", type=int)
    parser.add_argument(
        "--planners", default=",".join(INTER_OP), help="some of the values of inter-op"
    )
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that one plan may take")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    args = parser.parse_args(argv)
    planners = tuple(dict.fromkeys((_FIRST, *args.planners.split(","))))
    options = {
        "cluster": args.cluster,
        "microbatches": args.microbatches,
        "batch_args": args.batch_args,
        "layers": args.layers,
    }
    rows_of: dict[str, dict[str, Row]] = {}
    for module in args.modules:
        rows_of[module.name] = _planned(module, planners, options, args.limit)
        if args.json is not None:
            args.json.write_text(json.dumps(rows_of, indent=1) + "\n")
    console = Console(width=200)
    console.print(table(rows_of, planners))
    for name, rows in rows_of.items():
        for planner, row in rows.items():
            if "step_seconds" in row:
                console.print(f"{name}, {planner}: {stages(row)}", markup=False)
            else:
                console.print(
                    f"{name}, {planner}: {row.get('error', row.get('crash'))}", markup=False
                )
    if any("crash" in row for rows in rows_of.values() for row in rows.values()):
        return 2
    return 1 if any(shorter(rows) for rows in rows_of.values()) else 0


def _planned(
    module: Path, planners: Sequence[str], options: Mapping[str, Any], limit: float
) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() as cache:
        for planner in planners:
            rows[planner] = run_case(module, {**options, "inter_op": planner}, cache, limit)
            print(
                f"{module.name}, {planner}: {rows[planner].get('step_seconds', '–')}",
                file=sys.stderr,
                flush=True,
            )
    return rows


def shorter(rows: Mapping[str, Row]) -> tuple[str, ...]:
    """The baselines with a shorter step than the stage DP."""
    if "step_seconds" not in rows[_FIRST]:
        return tuple(planner for planner, row in rows.items() if "step_seconds" in row)
    least = rows[_FIRST]["step_seconds"] * (1 - _TOLERANCE)
    return tuple(planner for planner, row in rows.items() if row.get("step_seconds", least) < least)


def table(rows_of: Mapping[str, Mapping[str, Row]], planners: Sequence[str]) -> Table:
    """Seconds of the stage DP, and the others relative to it."""
    drawn = Table(
        "module", title="predicted step: of the stage DP in seconds, of the others relative to it"
    )
    for planner in planners:
        drawn.add_column(planner, justify="right")
    for name, rows in rows_of.items():
        best = rows[_FIRST].get("step_seconds")
        drawn.add_row(
            name,
            *(_cell(rows[planner], None if planner == _FIRST else best) for planner in planners),
        )
    return drawn


def _cell(row: Row, best: float | None) -> str:
    if "step_seconds" not in row:
        return "crash" if "crash" in row else "–"
    return f"{row['step_seconds']:.4g} s" if best is None else f"{row['step_seconds'] / best:.3f}"


def stages(row: Row) -> str:
    """`2× 4 layers on 2x2, 1 layers on 1x4`: equal neighbours together."""
    kinds = [
        f"{stage['layers']} layers on {'x'.join(map(str, stage['shape']))}"
        for stage in row["stages"]
    ]
    runs = [(kind, len(list(same))) for kind, same in groupby(kinds)]
    return ", ".join(f"{count}× {kind}" if count > 1 else kind for kind, count in runs)


if __name__ == "__main__":
    sys.exit(main())
