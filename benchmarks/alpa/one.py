"""Plan one model with one method, in a process of its own: a line of JSON on standard output.

    python -m benchmarks.alpa.one gpt-1.3b shardopt [--microbatches 128] [--layers 6] [--finish]

`seconds` is the predicted step: of the stage phase, or of the simulator when all phases run
(`--finish`). `planning` is seconds by phase, `peak_bytes` the memory of this process."""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Sequence
from time import perf_counter

from benchmarks.alpa.methods import METHODS, options, step
from benchmarks.alpa.phases import TO_STAGE
from benchmarks.alpa.specs import CASES, Case, find_case
from shardopt.frontend.calls.phase_options import phase_text
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.support.errors import UserError

_KEPT = ("stage candidates", "sharding problems solved", "stages", "predicted step seconds")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=[case.name for case in CASES], metavar="MODEL")
    parser.add_argument("method", choices=tuple(METHODS))
    parser.add_argument(
        "--microbatches", type=int, help="instead of the number of the authors' plan"
    )
    parser.add_argument("--layers", type=int, help="instead of the number of the authors' plan")
    parser.add_argument(
        "--finish", action="store_true", help="run all phases and simulate the step"
    )
    args = parser.parse_args(argv)
    case = find_case(args.model)
    chosen = options(case, args.method, args.microbatches, args.layers)
    print(json.dumps(measured(case, chosen, args.finish)), flush=True)
    return 0


def measured(case: Case, chosen: PlanOptions, finish: bool) -> dict[str, object]:
    """The prediction, or the reason why there is none, with the effort."""
    begin = perf_counter()
    source = step(case)
    row: dict[str, object] = {
        "trace_seconds": round(perf_counter() - begin, 2),
        "microbatches": chosen.microbatches,
        **({"logical_shape": chosen.logical_shape} if chosen.logical_shape else {}),
    }
    planning: dict[str, float] = {}
    try:
        row.update(_planned(source, chosen, finish, planning))
    except UserError as error:
        row["error"] = str(error)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {**row, "planning": planning, "peak_bytes": peak}


def _planned(
    source: bytes, chosen: PlanOptions, finish: bool, planning: dict[str, float]
) -> dict[str, object]:
    """Run the phases; `planning` gets the seconds of each as it ends. Raises UserError."""
    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module
    from shardopt.ir.rewriting import functions
    from shardopt.pipeline.manager import run_pipeline
    from shardopt.pipeline.phases import PHASE_NAMES, phase_range
    from shardopt.report.plan_summary import summarize

    row: dict[str, object] = {}
    with make_context() as context:
        module = load_module(source, context)
        for phase in PHASE_NAMES if finish else TO_STAGE:
            begin = perf_counter()
            result = run_pipeline(module, phase_range(phase, phase, phase_text(chosen, phase)))
            planning[phase] = round(perf_counter() - begin, 2)
            if phase == "import":
                row["ops"] = sum(
                    len(tuple(block)) for f in functions(module) for block in f.regions[0]
                )
            row.update(
                {name: value for (_, name), value in result.statistics.items() if name in _KEPT}
            )
            cuts = [
                d.message for d in result.diagnostics if "layers" in d.message and phase == "stage"
            ]
            if cuts:
                row["cuts"] = cuts
        row["seconds"] = row.get("predicted step seconds")
        if finish:
            row["seconds"] = summarize(module).makespan_seconds
    return row


if __name__ == "__main__":
    sys.exit(main())
