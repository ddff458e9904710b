"""Figure 11 of the paper: what local all-gathers between meshes are worth in a whole step of
Wide-ResNet, on 16 and 32 GPUs.

    python -m benchmarks.alpa.local_allgather [--models wresnet-4b,wresnet-6.8b] [--page]

One plan of stages and shardings a model; then transfers by each strategy, and the schedule of all.
"send_recv" is the paper's "without local all-gather", "local_allgather" the one with it, and a step
whose transfers take no time its "signal send/recv", the bound. Kept in `local_allgather.jsonl`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.alpa.kept import Result, fill
from benchmarks.alpa.methods import options, step
from benchmarks.alpa.pages import write_part
from benchmarks.alpa.phases import TO_STAGE, run_phases
from benchmarks.alpa.report import tflops
from benchmarks.alpa.specs import Case, find_case

if TYPE_CHECKING:
    from jaxlib.mlir import ir

KEPT = Path(__file__).parent / "local_allgather.jsonl"
MODELS = ("wresnet-4b", "wresnet-6.8b")
STRATEGIES = ("send_recv", "local_allgather", "auto")
BOUND = "no time for transfers"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--results", type=Path, default=KEPT, help="file of results")
    parser.add_argument("--page", action="store_true", help="write the table to the docs")
    args = parser.parse_args(argv)
    results = fill(args.results, args.models.split(","), lambda name: steps(find_case(name)))
    text = table(results)
    print(text)
    if args.page:
        write_part("figure 11", text)
    return 0


def steps(case: Case) -> Result:
    """Seconds of a step by strategy, and of the bound. Raises UserError."""
    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module

    chosen = options(case, "shardopt")
    with make_context() as context:
        module = load_module(step(case), context)
        run_phases(module, chosen, (*TO_STAGE, "shard"))
        sharded = str(module)
        seconds: dict[str, float] = {}
        for strategy in STRATEGIES:
            copy = load_module(sharded.encode(), context)
            run_phases(copy, replace(chosen, resharding=strategy), ("transfer",))
            free, seconds[strategy] = _simulated(copy, chosen.schedule)
        seconds[BOUND] = free
    return {"step_seconds": seconds}


def _simulated(module: ir.Module, schedule: str) -> tuple[float, float]:
    """Seconds of the loop without and with the time of transfers."""
    from shardopt.dialect.mpmd import read_topology
    from shardopt.dialect.program import read_program
    from shardopt.extract.pipeline_graph import read_pipeline, simulate_pipeline
    from shardopt.schedule.schedules import ScheduleText

    program = read_program(module)
    pipeline = read_pipeline(program, read_topology(program.main))
    free = replace(pipeline, transfer_seconds=(0.0,) * len(pipeline.transfer_seconds))
    text = ScheduleText(schedule)
    without, whole = (
        simulate_pipeline(text, each, program.num_microbatches).makespan_seconds
        for each in (free, pipeline)
    )
    return without, whole


def table(results: Mapping[str, Result]) -> str:
    """TFLOPS of a GPU, and how much faster than sends alone."""
    names = (*STRATEGIES, BOUND)
    lines = ["| model | GPUs | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for name in MODELS:
        case, seconds = find_case(name), results.get(name, {}).get("step_seconds")
        if not isinstance(seconds, dict):
            reason = results.get(name, {}).get("reason", "not run")
            lines.append(f"| {name} | {case.devices} | {reason} |" + " |" * (len(names) - 1))
            continue
        cells = [
            f"{tflops(case, seconds[each]):.2f} ({seconds[STRATEGIES[0]] / seconds[each]:.2f} ×)"
            for each in names
        ]
        lines.append(f"| {name} | {case.devices} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
