"""The `shardopt` command: plan a model for a cluster, run the plan, check it against one device."""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardopt.cost.errors import UserError
from shardopt.solve.stages.baselines.registry import INTER_OP
from shardopt.tools.common import EXIT_BUG, EXIT_USER_ERROR, ToolParser, console, report, run_tool
from shardopt.tools.plan_file_command import add_plan_file_options, asked_options, run_plan_file_command
from shardopt.tools.profile_command import add_profile
from shardopt.tools.schedule_command import add_schedule
from shardopt.tools.shard_command import add_shard
from shardopt.tools.solve_command import add_solve
from shardopt.tools.supervisor import Crash, Trace, supervised

if TYPE_CHECKING:
    import numpy as np

    from shardopt.frontend.plan import Plan, PlanOptions
    from shardopt.runtime.driver import Run
    from shardopt.runtime.reference import Difference

_PROG = "shardopt"
# Commands that read a module, which C++ may not survive, and the argument that names it.
_READING = {"plan": "model", "shard": "model", "schedule": "schedule"}
_OK, _ILL_CONDITIONED, _DIFFERS = "ok", "ill-conditioned", "DIFFERS"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, 1 for a mistake of the user or a check that failed, 2 for a bug of ours.

    Called without arguments, commands that read a module do so in a child process: C++ may crash on a damaged file.
    """
    args = _parser().parse_args(argv)

    def work(trace: Trace) -> int:
        args.trace = trace
        return run_tool(_PROG, lambda: args.run(args))

    if argv is not None or args.command not in _READING:
        return work(Trace())
    return supervised(work, lambda crash: _after_crash(crash, getattr(args, _READING[args.command])))


def _after_crash(crash: Crash, model: str) -> int:
    phase = crash.trace.get("phase")
    if phase is None:
        print(f"{model}: error: not a readable module: its reader failed ({crash})", file=sys.stderr)
        return EXIT_USER_ERROR
    print(f"{_PROG}: internal error: C++ code crashed ({crash}) in phase '{phase}'", file=sys.stderr)
    return EXIT_BUG


def _parser() -> ToolParser:
    parser = ToolParser(prog=_PROG, description="Automatic model parallelism for JAX: plan a model and run the plan.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=ToolParser)
    _add_plan(commands.add_parser("plan", help="choose stages, shardings, transfers and a schedule for a model"))
    add_shard(commands.add_parser("shard", help="choose the sharding of every value on one mesh"))
    add_profile(commands.add_parser("profile", help="measure the devices of this machine for the cost model"))
    add_schedule(commands.add_parser("schedule", help="simulate a schedule; write it as CSV, trace or picture"))
    add_solve(commands.add_parser("solve", help="solve an assignment problem in the contest's JSON format"))
    _add_run(commands.add_parser("run", help="run a plan on this machine or on a Ray cluster"))
    return parser


# ---- plan ----


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.description = "Plan MODEL (StableHLO text, MLIR bytecode or a portable artifact) for a cluster."
    parser.add_argument("model", nargs="?", metavar="MODEL", help="file, or - for standard input")
    parser.add_argument(
        "--cluster", default="", metavar="FILE|PRESET[:HxD]", help="what to plan for (default: that of the plan file)"
    )
    add_plan_file_options(parser)
    parser.add_argument(
        "--profile", default="", metavar="FILE", help="costs measured by `shardopt profile`, instead of formulas"
    )
    parser.add_argument(
        "--batch-args", default="auto", metavar="I,NAME[:DIM]|auto|none", help="arguments that hold the batch"
    )
    parser.add_argument("--batch-coupling", default="error", choices=("error", "per-microbatch"))
    parser.add_argument(
        "--microbatches",
        type=_count_or_auto,
        default=1,
        metavar="N|auto",
        help="microbatches a step (default 1); auto takes the number with the shortest predicted step",
    )
    parser.add_argument(
        "--layers",
        type=_count_auto_or_search,
        metavar="N|auto|search",
        help="layers to cluster into; search takes more of them as long as that shortens the predicted step",
    )
    parser.add_argument("--delta", type=float, default=0.5, help="excess of FLOPs a layer may have (default 0.5)")
    parser.add_argument("--stages", type=_count_or_auto, metavar="N|auto", help="pipeline stages")
    parser.add_argument("--submesh", metavar="HxD", help="allow only submeshes of this shape")
    parser.add_argument("--logical-shape", metavar="RxC", help="allow only this logical shape of submeshes")
    parser.add_argument("--schedule", default="auto", help="auto, a name such as 1f1b or gpipe, or a CSV file")
    parser.add_argument("--intra-op", default="ilp", help="ilp, or a baseline such as data, zero3 or megatron")
    parser.add_argument(
        "--recompute",
        default="auto",
        choices=("auto", "none", "layer", "full"),
        help="what stages compute again in their backward pass instead of keeping it",
    )
    parser.add_argument("--memory-budget", default="", metavar="BYTES", help="what a device may hold, such as 512MiB")
    parser.add_argument(
        "--explain", default="", metavar="WHAT", help="say why an operation or value is sharded as it is: argN, OP:N, …"
    )
    parser.add_argument(
        "--annotations", default="keep", choices=("keep", "require", "drop"), help="shardings that the model asks for"
    )
    parser.add_argument("--constraints", default="", metavar="FILE", help="file of constraints on shardings")
    parser.add_argument(
        "--inter-op", default="dp", choices=INTER_OP, help="how stages are chosen: the stage DP, or a baseline"
    )
    parser.add_argument("--mcmc-seed", type=int, default=0, help="of the random walk of --inter-op mcmc")
    parser.add_argument("--mcmc-proposals", type=_count, default=10000, metavar="N", help="steps of that walk")
    parser.add_argument("--no-unroll", dest="unroll", action="store_false", help="keep loops over layers rolled")
    parser.add_argument("--no-cache", dest="cache", action="store_false", help="use and keep nothing in the cache")
    parser.add_argument("--timing", action="store_true", help="report where the time went")
    parser.add_argument("-o", "--output", type=Path, metavar="PLAN", help="plan directory to write")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON instead of a table")
    parser.add_argument("--remarks", action="store_true", help="print remarks: what was decided, and what fell back")
    parser.set_defaults(run=partial(_plan_or_file, parser))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, found '{text}'")
    return int(text)


def _count_auto_or_search(text: str) -> int | str | None:
    return text if text == "search" else _count_or_auto(text)


def _count_or_auto(text: str) -> int | None:
    return None if text == "auto" else _count(text)


def _plan_or_file(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int | None:
    """Plan a model, or do what one of the options says about plan files."""
    if args.check_plan is not None or args.diff is not None:
        return run_plan_file_command(args)
    if args.model is None:
        parser.error("expected a MODEL, found none")
    _plan(args, asked_options(parser, args))
    return None


def _plan(args: argparse.Namespace, options: PlanOptions) -> None:
    from shardopt.cost.documents import json_text
    from shardopt.cost.progress import watching
    from shardopt.frontend.plan import check_target
    from shardopt.frontend.planning import make_plan
    from shardopt.pipeline.phases import PHASE_NAMES
    from shardopt.tools.plan_progress import PlanProgress
    from shardopt.tools.plan_timings import PlanTimings

    if args.output is not None:
        check_target(args.output)
    size = Path(args.model).stat().st_size if Path(args.model).is_file() else 0
    timings = PlanTimings()
    with PlanProgress(len(PHASE_NAMES)) as bars, watching(bars.inside), ExitStack() as reading:
        reading.enter_context(args.trace.reading(size))

        def on_phase(name: str) -> None:
            reading.close()
            args.trace.note(phase=name)
            bars.phase(name)

        plan = make_plan(
            args.model,
            options,
            explain=args.explain,
            cache=args.cache,
            on_phase=on_phase,
            on_result=timings.add,
            handler=partial(report, remarks=args.remarks),
        )
    timings.planned()
    if args.output is not None:
        plan.save(args.output)
    if args.json:
        print(json_text(plan.to_json()))
    else:
        console().print(plan.table())
    if args.timing:
        print(timings.report(), file=sys.stderr)


# ---- run ----


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run a plan directory; state is fed back from step to step."
    parser.add_argument("plan", type=Path, metavar="PLAN", help="directory written by `shardopt plan -o`")
    parser.add_argument(
        "--backend",
        default="local",
        choices=("local", "process", "ray"),
        help="threads or processes here, or Ray actors",
    )
    parser.add_argument("--steps", type=_count, default=1, metavar="N")
    parser.add_argument("--inputs", type=Path, metavar="F.npz", help="arrays in0, in1, …; others are random")
    parser.add_argument("--seed", type=int, default=0, help="of random inputs")
    parser.add_argument("--check", action="store_true", help="compare the first step with one device")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="largest relative difference (default 1e-4)")
    parser.add_argument("--quick-compile", action="store_true", help="less optimisation, less compile time")
    parser.add_argument(
        "--no-compile-cache",
        dest="compile_cache",
        action="store_false",
        help="compile everything, keep nothing on disk",
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from shardopt.frontend.plan import Plan
    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module
    from shardopt.runtime.driver import open_run, prepare
    from shardopt.runtime.inputs import random_inputs

    plan = Plan.load(args.plan)
    with make_context() as context:
        program = prepare(load_module(plan.module, context, name=str(args.plan / "module.mlirbc")))
    inputs = random_inputs(program, args.seed)
    if args.inputs is not None:
        _read_inputs(args.inputs, inputs)
    with open_run(program, args.backend, quick_compile=args.quick_compile, compile_cache=args.compile_cache) as run:
        run.load(inputs)
        for step in range(args.steps):
            outputs = _timed_step(run, step)
            if step == 0 and args.check:
                _check(plan, inputs, list(outputs), args.tolerance)


def _timed_step(run: Run, step: int) -> Any:
    from time import perf_counter

    begin = perf_counter()
    outputs = run.step()
    seconds = perf_counter() - begin
    scalars = [f"{outputs[k]:.6g}" for k in _float_scalars(run)]
    print(f"step {step}: {seconds:.3f} s" + (f"  scalars: {', '.join(scalars)}" if scalars else ""))
    return outputs


def _float_scalars(run: Run) -> list[int]:
    """Results that are floating-point scalars: losses and metrics."""
    specs = [result.value.spec for result in run.program.results]
    return [k for k, spec in enumerate(specs) if spec.shape == () and "float" in spec.dtype]


def _read_inputs(path: Path, inputs: list[np.ndarray]) -> None:
    """Replace inputs by the arrays `in<k>` of an .npz. Floats are widened, raw bytes reinterpreted (bfloat16)."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as stored:
            given = {name: stored[name] for name in stored.files}
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror or error}") from error
    except (ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"'{path}' is not an .npz file of plain arrays: {error}") from error
    known = {f"in{k}": k for k in range(len(inputs))}
    for name in sorted(given.keys() & known.keys()):
        inputs[known[name]] = _as_dtype(given[name], inputs[known[name]].dtype)
    missing = len(known) - len(given.keys() & known.keys())
    if missing:
        print(f"note: {missing} of {len(known)} inputs are not in '{path}' and are random", file=sys.stderr)


def _as_dtype(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    import numpy as np

    if array.dtype.kind == "V" and array.itemsize == dtype.itemsize:
        return array.view(dtype)
    return array.astype(dtype) if array.dtype != dtype and np.can_cast(array.dtype, dtype, "safe") else array


def _check(plan: Plan, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], tolerance: float) -> None:
    """Print every output against one device. Raises UserError when one differs that is not ill-conditioned."""
    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module
    from shardopt.runtime.reference import Reference, compare, conditioning

    with make_context() as context:
        function = Reference(load_module(plan.original, context, name="original.mlirbc"))
    reference = function(inputs)
    rows = compare(outputs, reference)
    passed = all(row.within(tolerance) for row in rows)
    floors = [0.0] * len(rows) if passed else conditioning(function, inputs, reference)
    verdicts = [_verdict(row, floor, tolerance) for row, floor in zip(rows, floors, strict=True)]
    console().print(_difference_table(rows, verdicts))
    differing = [row.name for row, verdict in zip(rows, verdicts, strict=True) if verdict == _DIFFERS]
    if differing:
        names = ", ".join(differing)
        raise UserError(f"{len(differing)} of {len(rows)} outputs differ by more than {tolerance:g}: {names}")
    print(f"check passed: {verdicts.count(_OK)} of {len(rows)} outputs within {tolerance:g} of one device")
    if unstable := verdicts.count(_ILL_CONDITIONED):
        print(f"{unstable} ill-conditioned: the last bit of the inputs changes them by more than the tolerance")


def _verdict(row: Difference, floor: float, tolerance: float) -> str:
    from shardopt.runtime.reference import is_noise

    if row.within(tolerance):
        return _OK
    return _ILL_CONDITIONED if is_noise(row, floor, tolerance) else _DIFFERS


def _difference_table(rows: Sequence[Difference], verdicts: Sequence[str]) -> Any:
    from rich.table import Table

    table = Table("output", "type", title="against one device")
    for name in ("max abs", "max rel", "unmatched", ""):
        table.add_column(name, justify="right")
    for row, verdict in zip(rows, verdicts, strict=True):
        type_ = f"{row.dtype}{list(row.shape)}"
        table.add_row(row.name, type_, f"{row.max_abs:.3g}", f"{row.max_rel:.3g}", str(row.unmatched), verdict)
    return table


if __name__ == "__main__":
    sys.exit(main())
