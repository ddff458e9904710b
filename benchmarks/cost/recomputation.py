"""What stages may compute again, in the plans of Korthikanti et al. (arXiv 2205.05198, table 3)
with sequence parallelism: seconds of a step and GiB of the fullest device, for each way.

    python -m benchmarks.cost.recomputation [22B 175B 530B 1T]

`by hand` is the paper's selective recomputation, as the model has it: scores and weights of
attention. `full` is its full recomputation, without sequence parallelism as in table 5. The others
are modes of stages, of which `selective` is found (docs/concepts/memory.md)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from shardopt.measured.case import case_of
from shardopt.measured.layout import RowRecomputation
from shardopt.measured.predict import prediction, prediction_recomputing
from shardopt.measured.rows import read_rows

_ROWS = Path(__file__).with_name("measured_steps.csv")
_WAYS = {
    "none": RowRecomputation(),
    "by hand": RowRecomputation(within="attention"),
    "selective": RowRecomputation("selective"),
    "layer": RowRecomputation("layer"),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=["22B", "175B", "530B"], metavar="MODEL")
    args = parser.parse_args(argv)
    table = Table(title="predicted seconds of a step, GiB of the fullest device")
    for column in ("model", "recomputed", "seconds", "GiB"):
        table.add_column(column, justify="right")
    rows = {row.id: row for row in read_rows(_ROWS)}
    for model in args.models:
        row = rows[f"korthikanti-{model}"]
        parallel = case_of(replace(row, recompute="none + sequence parallel"))
        outcomes = {"full": prediction(case_of(row))} | {
            name: prediction_recomputing(parallel, way) for name, way in _WAYS.items()
        }
        for name, each in outcomes.items():
            gib = each.memory_bytes / 2**30
            table.add_row(model, name, f"{each.step_seconds:.4g}", f"{gib:.1f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
