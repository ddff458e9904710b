"""Predicted against measured steps and bytes of one device.

    python -m benchmarks.one_device.compare FOLDER benchmarks/one_device/h100/steps.jsonl --cluster
    h100-sxm:1x1

FOLDER holds the modules whose names the rows of `benchmarks.one_device.step` have. Seconds are
those of a plan, whose programs are those before, in and behind the loop over microbatches; bytes
those of the account of the shard phase for the one program that was measured."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from jaxlib.mlir import ir
from rich.console import Console
from rich.table import Table

from shardopt.dialect.cluster import write_cluster
from shardopt.forms.sharded_form import read_cost
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.hardware.cluster_file import load_cluster
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions
from shardopt.pipeline.manager import run_pipeline
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
            seconds, bytes_predicted = predicted(
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
        errors.append((seconds / measured - 1, bytes_predicted / bytes_ - 1))
        table.add_row(
            row["model"],
            f"{1e3 * seconds:.2f}",
            f"{1e3 * measured:.2f}",
            f"{100 * errors[-1][0]:+.1f}",
            f"{bytes_predicted / _GIB:.2f}",
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
    """Seconds of a step on one device, and the most bytes that it holds as one program. Raises
    UserError."""
    options = PlanOptions(cluster, profile=profile, stages=1, submesh="1x1", recompute="none")
    return make_plan(module, options).summary.step_seconds, bytes_of_program(module, cluster)


def bytes_of_program(source: bytes, cluster: str) -> float:
    """The most that one device holds while it runs a module as one program. Raises UserError."""
    with make_context() as context, ir.Location.unknown():
        module = load_module(source, context)
        run_pipeline(module, "builtin.module(shardopt-import)")
        write_cluster(module, load_cluster(cluster))
        run_pipeline(module, "builtin.module(shardopt-shard{mesh=1})")
        [main_function] = functions(module)
        return float(read_cost(main_function).peak_bytes)


def compiled_bytes(parts: dict[str, Any]) -> float:
    """What XLA says that the executable holds while it runs."""
    return float(parts["arguments"] + parts["results"] + parts["temporary"] - parts["aliased"])


if __name__ == "__main__":
    sys.exit(main())
