"""OPT-175B on 1,024 A100: the best of the plans of a grid, beside the 179 TFLOPS of a GPU that
Alpa and Ray reached (anyscale.com/blog, "Training 175B Parameter Language Models at 1000 GPU scale
with Alpa and Ray").

    python -m benchmarks.alpa.opt175b [--page]

The publication names neither plan nor batch. Predicted are equal stages of whole hosts' tensor
parallelism, with 1,024 sequences of 2,048 tokens a step as OPT was trained (arXiv 2205.01068,
section 2.2), on NVIDIA's own hosts (preset dgx-a100). FLOPs are counted as there, with the forward
pass computed again. Kept in `opt175b.jsonl`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.alpa.kept import Result, fill
from benchmarks.alpa.pages import write_part
from shardopt.measured.case import case_of
from shardopt.measured.predict import prediction
from shardopt.measured.rows import Row, read_rows
from shardopt.models.specs import GptSpec

FOLDER = Path(__file__).parent
PUBLISHED, KEPT = FOLDER / "opt175b.csv", FOLDER / "opt175b.jsonl"
TENSOR, PIPELINES, MICROBATCHES = 8, (4, 8, 16), (1, 2, 4)
USABLE = 0.9
GIB = 2**30


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=KEPT, help="file of results")
    parser.add_argument("--page", action="store_true", help="write the table to the docs")
    args = parser.parse_args(argv)
    [row] = read_rows(PUBLISHED)
    text = table(row, fill(args.results, _cells(), lambda cell: predicted(row, cell)))
    print(text)
    if args.page:
        write_part("OPT-175B", text)
    return 0


def _cells() -> Iterator[str]:
    for pipeline in PIPELINES:
        for microbatch in MICROBATCHES:
            yield f"pp{pipeline}-mbs{microbatch}"


def predicted(row: Row, cell: str) -> Result:
    case = case_of(_planned_row(row, cell))
    plan = prediction(case)
    assert isinstance(case.spec, GptSpec)
    flops = case.spec.flops(recompute=True)
    return {
        "step_seconds": plan.step_seconds,
        "memory_bytes": plan.memory_bytes,
        "tflops": flops / plan.step_seconds / (row.devices or 1) / 1e12,
    }


def _planned_row(row: Row, cell: str) -> Row:
    pipeline, microbatch = (int(number) for number in re.findall(r"\d+", cell))
    replicas = (row.devices or 1) // (TENSOR * pipeline)
    return replace(row, dp=replicas, tp=TENSOR, pp=pipeline, mbs=microbatch)


def table(row: Row, results: Mapping[str, Result]) -> str:
    """A line a plan; the fastest that fits first."""
    lines = [
        "| dp | tp | pp | microbatch | step s | TFLOPS of a GPU (179 measured) | GiB of a device |",
        "|---|---|---|---|---|---|---|",
    ]
    memory = case_of(_planned_row(row, next(_cells()))).machine.device.memory_bytes
    order = sorted(_cells(), key=lambda cell: -_number(results, cell, "tflops"))
    for cell in order:
        plan = _planned_row(row, cell)
        axes = f"| {plan.dp} | {plan.tp} | {plan.pp} | {plan.mbs} "
        if "tflops" not in results.get(cell, {}):
            lines.append(f"{axes}| not run | | |")
            continue
        held = _number(results, cell, "memory_bytes")
        fits = "" if held <= USABLE * memory else ", does not fit"
        seconds, rate = (_number(results, cell, name) for name in ("step_seconds", "tflops"))
        lines.append(f"{axes}| {seconds:.2f} | {rate:.0f} | {held / GIB:.1f}{fits} |")
    return "\n".join(lines)


def _number(results: Mapping[str, Result], cell: str, name: str) -> float:
    return float(str(results.get(cell, {}).get(name, 0.0)))


if __name__ == "__main__":
    sys.exit(main())
