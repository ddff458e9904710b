"""Messages of planned models: transfers that a step makes, and the messages that carry them.

    python -m benchmarks.runtime.messages FOLDER --match '*_tiny.train' [--cluster cpu-test:1x4]
        [--stages 4] [--microbatches 4]

A model is `NAME.mlirbc`; it is planned with one layer and one mesh a stage, under 1F1B. Transfers
between the same two meshes at the same place in both instruction lists travel as one message.
Printed are transfers and messages of a whole step, and the most transfers that one message carries.
Models that cannot be planned so are named with the reason."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.frontend.check_models import listed_models
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.driver import prepare
from shardopt.runtime.program.instructions import Program, Send
from shardopt.support.errors import UserError


def carried(program: Program) -> list[int]:
    """Of every message of a step, the number of transfers in it."""
    return [
        len(each.buffers)
        for part in program.meshes
        for each in part.instructions
        if isinstance(each, Send)
    ]


def planned(path: Path, args: argparse.Namespace) -> Program:
    """Raises UserError, or what a diagnostic raises."""
    options = PlanOptions(
        args.cluster,
        microbatches=args.microbatches,
        layers=args.stages,
        stages=args.stages,
        submesh="1x1",
        schedule="1f1b",
    )
    plan = make_plan(str(path), options, cache=False)
    with make_context() as context:
        return prepare(load_module(plan.module, context))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--match", default="*_tiny.train")
    parser.add_argument("--cluster", default="cpu-test:1x4")
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=4)
    args = parser.parse_args(argv)
    table = Table(
        "model", title=f"a step of {args.stages} stages and {args.microbatches} microbatches"
    )
    for column in ("transfers", "messages", "most in one", "instructions"):
        table.add_column(column, justify="right")
    refused = []
    for name, _ in listed_models(args.folder, args.match):
        try:
            program = planned(args.folder / f"{name}.mlirbc", args)
        except UserError as error:
            refused.append(f"{name}: {str(error).splitlines()[0]}")
            continue
        sizes = carried(program)
        count = sum(len(part.instructions) for part in program.meshes)
        table.add_row(
            name, f"{sum(sizes)}", f"{len(sizes)}", f"{max(sizes, default=0)}", f"{count}"
        )
    console = Console(width=160)
    console.print(table)
    for reason in refused:
        console.print(reason, markup=False)


if __name__ == "__main__":
    main()
