"""Plan every module of a folder for several clusters: the stages chosen, or why not.

    python -m benchmarks.frontend.plan_models FOLDER --cluster a100-80g:2x4 --cluster a100-80g:4x8
    [--match '*.train']

A model is `NAME.mlirbc`; `index.json` beside it may list `{"name": …, "batch_args": [numbers]}`,
otherwise the planner looks for the batch. The batch is cut into as many microbatches as
`--microbatches` says, or into the largest divisor of its extent below that; one that is refused for
a statistic over the whole batch is planned again with those of each microbatch (marked `*`), one
that cannot be cut as a whole (its reason is listed below the table). Each run is a process of its
own with an empty cache. Exit code 1 when one ends in anything but a plan or a diagnostic."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.frontend.check_models import listed_models
from benchmarks.frontend.plan_runs import run_case

# Refusals that other options get past.
_INDIVISIBLE = "divides into num-microbatches"
_COUPLED = "batch-coupling=per-microbatch lets"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cluster", action="append", required=True, metavar="FILE|PRESET[:HxD]")
    parser.add_argument("--match", default="*.train")
    parser.add_argument(
        "--microbatches", type=int, default=8, help="at most so many microbatches (default 8)"
    )
    parser.add_argument(
        "--batch-args", action="append", default=[], metavar="NAME=I:D,…", help="of one model"
    )
    parser.add_argument("--layers", type=int)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that one run may take")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    args = parser.parse_args(argv)
    batch_args = dict(text.split("=", 1) for text in args.batch_args)
    rows = []
    for name, batch in listed_models(args.folder, args.match):
        for cluster in args.cluster:
            row = _planned(args, name, cluster, batch_args.get(name, batch))
            rows.append({"model": name, "cluster": cluster, **row})
            print(f"{name} on {cluster}: {_outcome(rows[-1])}", file=sys.stderr, flush=True)
            if args.json is not None:
                args.json.write_text(json.dumps(rows, indent=1) + "\n")
    console = Console(width=200)
    console.print(_table(rows))
    for row in rows:
        for reason in ("coupled", "uncut"):
            if reason in row:
                console.print(
                    f"{row['model']} on {row['cluster']}, {reason}: {row[reason]}", markup=False
                )
    return 1 if any("crash" in row for row in rows) else 0


def _planned(args: argparse.Namespace, name: str, cluster: str, batch: str) -> dict[str, Any]:
    """With the most microbatches that the batch allows; a model without a batch has one."""
    options = {
        "cluster": cluster,
        "layers": args.layers,
        "batch_args": batch,
        "batch_coupling": "error",
    }
    count = 1 if batch == "none" else args.microbatches
    reasons: dict[str, str] = {}
    while True:
        options["microbatches"] = count
        row = _run(args, name, options)
        message = row.get("error", "")
        if _COUPLED in message and options["batch_coupling"] == "error":
            reasons["coupled"], options["batch_coupling"] = message, "per-microbatch"
        elif _INDIVISIBLE in message and count > 1:
            count -= 1
        elif message and row["failed_in"] == "microbatch" and count > 1:
            reasons["uncut"], count = message, 1
        else:
            return {**row, **reasons, "microbatches": count}


def _run(args: argparse.Namespace, name: str, options: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        return run_case(args.folder / f"{name}.mlirbc", options, cache, args.limit)


def _outcome(row: dict[str, Any]) -> str:
    if "crash" in row:
        return f"CRASH: {row['crash'].strip().splitlines()[-1]}"
    if "error" in row:
        return (
            f"refused in {row['failed_in']} after {row['seconds']:.1f} s: "
            f"{row['error'].splitlines()[0]}"
        )
    return f"{len(row['stages'])} stages in {row['seconds']:.1f} s: {_stages(row)}"


def _stages(row: dict[str, Any]) -> str:
    """`2× 4 layers on 2x2, 1 layer on 1x4`: equal neighbours together."""
    kinds = [
        f"{stage['layers']} on {'x'.join(map(str, stage['shape']))}" for stage in row["stages"]
    ]
    runs = [(kind, len(list(same))) for kind, same in groupby(kinds)]
    return ", ".join(f"{count}× {kind}" if count > 1 else kind for kind, count in runs)


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(
        "model", "cluster", title="layers on logical meshes by stage, or the reason for a refusal"
    )
    for name in ("ops", "B", "layers", "step", "seconds", "peak"):
        table.add_column(name, justify="right")
    table.add_column("stages, or why not")
    for row in rows:
        if "stages" not in row:
            lines = row.get("error", row.get("crash", "")).splitlines()
            seconds = f"{row['seconds']:.1f}" if "seconds" in row else ""
            table.add_row(
                row["model"],
                row["cluster"],
                "",
                str(row["microbatches"]),
                "",
                "",
                seconds,
                "",
                lines[0],
            )
            continue
        table.add_row(
            row["model"],
            row["cluster"],
            str(row["ops"]),
            f"{row['microbatches']}{'*' if 'coupled' in row else ''}",
            str(int(row["statistics"].get("layers", 0))),
            f"{1e3 * row['step_seconds']:.3g} ms",
            f"{row['seconds']:.1f}",
            f"{row['peak_bytes'] / 2**20:.0f} MiB",
            _stages(row),
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
