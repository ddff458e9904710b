"""Which programs of JAX, Optax, Flax, Equinox, Haiku and transformers work: a table.

    python -m benchmarks.programs                                 # all, about an hour of one core
    python -m benchmarks.programs Optax "JAX/plain step" --results results.json
    python -m benchmarks.programs --table docs/evidence/programs.md --results results.json

Every program runs in a process of its own (`benchmarks.programs.one`): three steps with one stage,
with two, and with two stages and several microbatches, against the library's own jit. Libraries
that are not installed are named and left out. Results that the file has are kept but for those that
are named, and those of the page, as it shows them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.programs.one import SETTINGS
from benchmarks.programs.program import absent_libraries, installed_programs
from benchmarks.programs.table import page, read_page

_OUT_OF_TIME = (signal.SIGXCPU, signal.SIGKILL)
# "LIBRARY/FEATURE" -> outcomes, as `benchmarks.programs.one` prints them.
Results = dict[str, list[dict[str, Any]]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", metavar="LIBRARY[/FEATURE]")
    parser.add_argument("--results", type=Path, help="JSON file to read and to write")
    parser.add_argument("--table", type=Path, help="page to write of all results")
    parser.add_argument(
        "--limit", type=int, default=180, help="seconds of the processor for one program"
    )
    parser.add_argument("--settings", default=",".join(SETTINGS), help="of 1x1, 2x1 and 2xB")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    args = parser.parse_args(argv)
    names = [f"{each.library}/{each.feature}" for each in installed_programs()]
    absent = absent_libraries()
    for library in absent:
        print(f"{library} is not installed: left out", file=sys.stderr)
    results: Results = {}
    if args.table is not None and args.table.is_file():
        results = read_page(args.table.read_text())
    if args.results is not None and args.results.is_file():
        for name, outcomes in json.loads(args.results.read_text()).items():
            results[name] = merged(results.get(name, []), outcomes)
    chosen = [
        name for name in names
        if (name not in results and not args.programs)
        or {name, name.split("/")[0]} & set(args.programs)
    ]  # fmt: skip
    with ThreadPoolExecutor(args.jobs) as pool:
        rows = pool.map(lambda name: run(name, args.limit, args.settings.split(",")), chosen)
        for name, outcomes in zip(chosen, rows, strict=True):
            results[name] = merged(results.get(name, []), outcomes)
            summary = ", ".join(f"{each['setting']} {each['kind']}" for each in outcomes)
            print(f"{name}: {summary}", flush=True)
            if args.results is not None:
                args.results.write_text(json.dumps(results, indent=1) + "\n")
    # Rows of libraries that are absent here stand behind: they come last in the page, too.
    ordered = {name: results[name] for name in (*names, *results) if name in results}
    missing = [each for each in absent if not any(row.startswith(f"{each}/") for row in ordered)]
    if args.table is not None:
        args.table.write_text(page(ordered, len({*names, *ordered}), missing))
    return int(any(each["kind"] in ("wrong", "failed") for row in ordered.values() for each in row))


def merged(
    before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The outcomes of one program, where `after` has those of some settings anew."""
    by_setting = {each["setting"]: each for each in (*before, *after)}
    return [by_setting[setting] for setting in SETTINGS if setting in by_setting]


def run(name: str, limit: int, settings: Sequence[str]) -> list[dict[str, Any]]:
    """The outcomes of one program; a process that ends otherwise has failed in the first setting
    that it says nothing of."""
    command = [sys.executable, "-m", "benchmarks.programs.one", name, "--limit", str(limit)]
    command += ["--settings", ",".join(settings)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"setting"')]
    outcomes = [json.loads(line) for line in lines]
    end = (done.stderr.strip().splitlines() or ["no output"])[-1]
    end = f"not done within {limit} s" if -done.returncode in _OUT_OF_TIME else end
    return outcomes + [
        {"setting": setting, "kind": "failed", "difference": 0.0, "message": end}
        for setting in settings[len(outcomes) :][:1]
    ]


if __name__ == "__main__":
    sys.exit(main())
