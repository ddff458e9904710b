"""Figures 7 and 9 of the paper: predicted throughput of its models on its cluster, method by
method, beside what its authors measured.

    python -m benchmarks.alpa [--models gpt,moe,wresnet] [--gpus 1,4,8] [--methods
                              shardopt,intra-only] [--limit 600] [-o results.json] [--finish]

Each plan is made by a process of its own (`benchmarks.alpa.one`) with a time limit. Results that
stand in the file already are kept: `--again` plans them anew. When models or costs change, mark
them `"older": true` until they are. The table goes to standard output,
`--svg` draws it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from benchmarks.alpa.methods import METHODS
from benchmarks.alpa.report import picture, tables
from benchmarks.alpa.revision import revision
from benchmarks.alpa.specs import CASES, Case

FAMILIES = ("gpt", "moe", "wresnet")
Results = dict[str, dict[str, object]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", default=",".join(FAMILIES), help="families, or names such as gpt-39b"
    )
    parser.add_argument("--gpus", default="1,2,4,8,16,32,64")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument(
        "--microbatches", type=int, help="instead of the number of the authors' plan"
    )
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a plan may take")
    parser.add_argument(
        "--finish", action="store_true", help="run all phases and simulate the step"
    )
    parser.add_argument(
        "--again", action="store_true", help="plan what is in the file already, too"
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="JSON file of results to read and to write"
    )
    parser.add_argument("--svg", type=Path, help="picture to draw")
    args = parser.parse_args(argv)
    results = _read(args.output)
    for case in _chosen(args.models, args.gpus):
        for method in args.methods.split(","):
            key = f"{case.name}/{method}" + (f"/{args.microbatches}" if args.microbatches else "")
            if key in results and not args.again:
                continue
            print(f"{key} …", file=sys.stderr, flush=True)
            result = run(case, method, args.limit, args.finish, args.microbatches)
            # Another process may have added to the file.
            results = {
                **results,
                **_read(args.output),
                key: result,
            }
            _write(args.output, results)
    print(tables(results))
    if args.svg is not None:
        args.svg.write_text(picture(results))
    return 0


def _chosen(models: str, gpus: str) -> list[Case]:
    names, devices = models.split(","), [int(number) for number in gpus.split(",")]
    return [
        case for case in CASES if {case.name, case.family} & set(names) and case.devices in devices
    ]


def run(
    case: Case, method: str, limit: float, finish: bool, microbatches: int | None
) -> dict[str, object]:
    """What `benchmarks.alpa.one` says, or how it ended instead; always with the wall time."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.alpa.one",
        case.name,
        method,
        *(["--finish"] if finish else []),
    ]
    if microbatches:
        command += ["--microbatches", str(microbatches)]
    begin = perf_counter()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not planned within {limit:g} s", "timeout": True}
    try:
        result = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        result = {"error": f"ended with {done.returncode}: {last}", "crash": True}
    return {**result, "wall_seconds": round(perf_counter() - begin, 1), "revision": revision()}


def _read(path: Path | None) -> Results:
    return json.loads(path.read_text()) if path is not None and path.is_file() else {}


def _write(path: Path | None, results: Results) -> None:
    if path is not None:
        path.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
