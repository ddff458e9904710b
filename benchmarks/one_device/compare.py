"""Predicted against measured steps and bytes of one device.

    python -m benchmarks.one_device.compare FOLDER benchmarks/one_device/h100/steps.jsonl --cluster
    h100-sxm:1x1

FOLDER holds the modules whose names the rows of `benchmarks.one_device.step` have.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from shardopt.frontend.plan import PlanOptions
from shardopt.frontend.planning import make_plan
from shardopt.support.errors import UserError

_GIB = 2**30


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows", type=Path, help="lines of benchmarks.one_device.step")
    parser.add_argument("--cluster", required=True, help="of one device")
    parser.add_argument("--profile", default="", help="file of `shardopt profile`")
    parser.add_argument("--only", default="", help="models whose name contains this")
    args = parser.parse_args(argv)
    rows = [json.loads(line) for line in args.rows.read_text().splitlines()]
    table = Table(
        title=f"one device of {args.cluster}{' with ' + args.profile if args.profile else ''}"
    )
    table.add_column("model")
    for name in (
        "predicted ms",
        "measured ms",
        "error %",
        "predicted GiB",
        "XLA's GiB",
        "error % ",
    ):
        table.add_column(name, justify="right")
    errors: list[tuple[float, float]] = []
    for row in rows:
        if args.only not in row["model"]:
            continue
        try:
            seconds, held = predicted(
                (args.folder / f"{row['model']}.mlirbc").read_bytes(), args.cluster, args.profile
            )
        except UserError as error:
            table.add_row(
                row["model"],
                "refused",
                f"{1e3 * row['step_seconds']['median']:.2f}",
                str(error)[:60],
            )
            continue
        measured, bytes_ = row["step_seconds"]["median"], compiled_bytes(row["bytes"])
        errors.append((seconds / measured - 1, held / bytes_ - 1))
        table.add_row(
            row["model"],
            f"{1e3 * seconds:.2f}",
            f"{1e3 * measured:.2f}",
            f"{100 * errors[-1][0]:+.1f}",
            f"{held / _GIB:.2f}",
            f"{bytes_ / _GIB:.2f}",
            f"{100 * errors[-1][1]:+.1f}",
        )
    Console(width=120).print(table)
    for name, values in zip(("steps", "bytes"), zip(*errors, strict=True), strict=True):
        sizes = [abs(value) for value in values]
        print(
            f"{name}: absolute error in the median {100 * median(sizes):.1f} %, in the mean "
            f"{100 * mean(sizes):.1f} %"
        )
    return 0


def predicted(module: bytes, cluster: str, profile: str) -> tuple[float, float]:
    """Seconds of a step on one device, and the most bytes that it holds. Raises UserError."""
    options = PlanOptions(cluster, profile=profile, stages=1, submesh="1x1", recompute="none")
    summary = make_plan(module, options).summary
    return summary.step_seconds, float(max(stage.peak_bytes for stage in summary.stages))


def compiled_bytes(held: dict[str, Any]) -> float:
    """What XLA says that the executable holds while it runs."""
    return float(held["arguments"] + held["results"] + held["temporary"] - held["aliased"])


if __name__ == "__main__":
    sys.exit(main())
