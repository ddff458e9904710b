"""Damage plan folders and modules, and run them: none may end a command, have it hang, or be run as
something else without a word.

    python -m benchmarks.tools.fuzz_plans [--inputs 2000] [--seed 0] [--jobs 2] [--keep DIR]

The plan is that of an MLP with momentum on two meshes. Bits of one of its files are flipped, or the
file is cut short, and `shardopt run` (two thirds) or `shardopt program` reads the folder, or the
module as a file of its own. The checksums of the folder stand as they were, without the line of
the file, or as they would be had the damage been meant. What runs all the same is listed: with
`--check` its results are held against the model, so that only damage to what no result depends on
passes. Every command is forked after the imports."""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.tools.fuzz_opt import MUTATIONS, run_in_child, verdict_of

_SUMS = "files.sha256"
_FOLDER, _MODULE = "plan", "module"
# Of a plan, by how much there is to lose.
_TARGETS = {"module.mlirbc": 6, "original.mlirbc": 2, "plan.json": 2, "ir": 1, _SUMS: 1}
_RUN_FAILED = 3  # said in one line, by a worker that could not compile or run it


@dataclass(frozen=True)
class Input:
    number: int
    kind: str  # a folder, or a module as a file
    damage: str
    target: str
    sums: str  # kept, dropped or renewed
    command: str
    seed: int


def make_inputs(count: int, seed: int) -> Iterator[Input]:
    generator = random.Random(seed)
    for number in range(count):
        yield Input(
            number,
            generator.choice((_FOLDER, _FOLDER, _MODULE)),
            generator.choice(("flip", "truncate")),
            generator.choices(list(_TARGETS), list(_TARGETS.values()))[0],
            generator.choice(("kept", "dropped", "renewed")),
            generator.choice(("run", "run", "program")),
            generator.randrange(1 << 30),
        )


def make_plan_folder(folder: Path) -> None:
    from benchmarks.runtime.state_programs import mlp_plan

    mlp_plan(width=8, stages=2, devices=1).save(folder)


def run(plan: Path, item: Input) -> tuple[Input, str, str]:
    """(input, verdict, stderr)."""
    with tempfile.TemporaryDirectory() as scratch:
        path = _damaged(plan, Path(scratch), item)
        arguments = [item.command, str(path)]
        if item.command == "run":
            arguments += ["--quick-compile", "--no-compile-cache", "--watchdog", "0", "--check"]
        errors = Path(scratch) / "stderr"
        status = run_in_child(_tool(arguments), errors)
        text = errors.read_text(errors="replace")
    return item, _verdict(status, text, str(path)), text


def _damaged(plan: Path, scratch: Path, item: Input) -> Path:
    generator = random.Random(item.seed)
    if item.kind == _MODULE:
        path = scratch / "module.mlirbc"
        shutil.copy(plan / "module.mlirbc", path)
        _damage(path, item.damage, generator)
        return path
    folder = scratch / "plan"
    shutil.copytree(plan, folder)
    path = folder / item.target
    if path.is_dir():
        path = generator.choice(sorted(path.iterdir()))
    _damage(path, item.damage, generator)
    name = path.relative_to(folder).as_posix()
    if item.sums != "kept" and name != _SUMS:
        lines = (folder / _SUMS).read_text().splitlines()
        lines = [line for line in lines if not line.endswith(f"  {name}")]
        if item.sums == "renewed":
            lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}")
        (folder / _SUMS).write_text("".join(line + "\n" for line in lines))
    return folder


def _damage(path: Path, damage: str, generator: random.Random) -> None:
    data = bytearray(path.read_bytes())
    MUTATIONS[damage](data, generator, b"")
    path.write_bytes(data)


def _tool(arguments: Sequence[str]) -> Callable[[], int]:
    def work() -> int:
        from shardopt.tools.shardopt import main

        sys.argv = ["shardopt", *arguments]  # passed directly, they would run unsupervised
        return main()

    return work


def _verdict(status: int, text: str, path: str) -> str:
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _RUN_FAILED:
        return "failed with a line" if "Traceback" not in text else "traceback"
    verdict = verdict_of(status, text.replace(path, "input.mlir"))
    # A fault inside of what could be read is said at its location in there.
    if verdict == "refused without saying where" and "error: " in text and "Trace" not in text:
        return "refused"
    return verdict


def _preload() -> None:
    import jax  # noqa: F401

    import shardopt.frontend.plans.plan
    import shardopt.report.plan_summary
    import shardopt.runtime.backends.local
    import shardopt.runtime.driver
    import shardopt.runtime.reference
    import shardopt.tools.run.command
    import shardopt.tools.shardopt  # noqa: F401


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder for what was said of wrong outcomes")
    args = parser.parse_args(argv)
    counts: Counter[tuple[str, str]] = Counter()
    bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        plan = Path(scratch) / "plan"
        make_plan_folder(plan)
        context = get_context("forkserver")
        with ProcessPoolExecutor(args.jobs, mp_context=context, initializer=_preload) as pool:
            inputs = make_inputs(args.inputs, args.seed)
            for item, verdict, text in pool.map(partial(run, plan), inputs, chunksize=10):
                counts[f"{item.kind}, {item.sums}", verdict] += 1
                if verdict in ("ran", "refused", "failed with a line"):
                    continue
                bad += 1
                if args.keep is not None:
                    args.keep.mkdir(parents=True, exist_ok=True)
                    (args.keep / f"{item.number}.txt").write_text(f"{verdict}\n{item}\n{text}")
    kinds = sorted({kind for kind, _ in counts})
    table = Table("outcome", *kinds, "all", title="damaged plans, and what their sums say")
    for verdict in sorted({verdict for _, verdict in counts}):
        row = [counts[kind, verdict] for kind in kinds]
        table.add_row(verdict, *map(str, row), str(sum(row)))
    Console(width=140).print(table)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
