"""What the runtime itself costs: messages, instructions, empty steps, and a GPT's step beside its
functions alone.

    python -m benchmarks.runtime --backends local,process,ray --output costs.json
    python -m benchmarks.runtime transfers objects

Everything is measured in turns with the plain way to do the same, and medians are printed with the
load of the machine: on a busy one, trust the ratios."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.runtime.samples import load

Rows = list[dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(_PARTS)}; all if none is named")
    parser.add_argument("--backends", default="local", help="of the steps, separated by commas")
    parser.add_argument("--steps", type=int, default=30, help="measured steps of each kind")
    parser.add_argument("--most-bytes", type=int, default=1 << 27, help="of the largest message")
    parser.add_argument("--layers", type=int, default=2, help="of the GPT")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=14)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="also write all figures as JSON"
    )
    args = parser.parse_args(argv)
    unknown = sorted(set(args.parts) - set(_PARTS))
    if unknown:
        parser.error(f"unknown part '{unknown[0]}': known parts are {', '.join(_PARTS)}")
    document: dict[str, Any] = {"cores": os.cpu_count(), "load": load()}
    for name in args.parts or _PARTS:
        rows = _PARTS[name](args)
        document[name] = rows
        Console(width=120).print(_table(name, rows))
        if args.output is not None:
            args.output.write_text(json.dumps(document | {"load_after": load()}, indent=1) + "\n")
    return 0


def _transfers(args: argparse.Namespace) -> Rows:
    from benchmarks.runtime import transfers

    rows: Rows = []
    for bytes in (size for size in transfers.SIZES if size <= args.most_bytes):
        pairs = transfers.mailboxes(bytes)
        for unix in (True, False):
            bursts = dict.fromkeys((1, transfers.burst_of(bytes)))
            pairs += [transfers.sockets(bytes, burst, unix=unix) for burst in bursts]
        rows += [pair.record() for pair in pairs]
    return rows


def _objects(args: argparse.Namespace) -> Rows:
    from benchmarks.runtime.objects import objects
    from benchmarks.runtime.transfers import SIZES

    return [pair.record() for pair in objects([size for size in SIZES if size <= args.most_bytes])]


def _instructions(args: argparse.Namespace) -> Rows:
    from benchmarks.runtime.instructions import instruction_seconds

    return [
        {"instruction": kind, "seconds": seconds}
        for kind, seconds in instruction_seconds(args.steps).items()
    ]


def _steps(args: argparse.Namespace) -> Rows:
    from benchmarks.runtime.instructions import step_seconds

    return [
        {"backend": name, **step_seconds(name, args.steps)} for name in args.backends.split(",")
    ]


def _starting(args: argparse.Namespace) -> Rows:
    from benchmarks.runtime.starting import start_seconds

    return start_seconds(tuple(args.backends.split(",")), args.steps)


def _looking(args: argparse.Namespace) -> Rows:
    from benchmarks.runtime.looking import looking_seconds

    return looking_seconds(args.steps)


def _compiling(args: argparse.Namespace) -> Rows:
    from benchmarks.runtime.compiling import compile_seconds
    from examples.gpt import Config

    return compile_seconds(Config(args.layers, args.hidden, 4, 512, args.length), args.batch)


def _gpt(args: argparse.Namespace) -> Rows:
    from benchmarks.runtime.gpt import step_overheads
    from examples.gpt import Config

    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        config = Config(args.layers, args.hidden, 4, 512, args.length)
        return step_overheads(config, args.batch, tuple(args.backends.split(",")), args.steps)
    finally:
        os.sched_setaffinity(0, cores)


_PARTS: dict[str, Callable[[argparse.Namespace], Rows]] = {
    "transfers": _transfers,
    "objects": _objects,
    "instructions": _instructions,
    "steps": _steps,
    "starting": _starting,
    "looking": _looking,
    "compiling": _compiling,
    "gpt": _gpt,
}


def _table(name: str, rows: Rows) -> Table:
    table = Table(title=f"{name} (load {load():.1f})")
    for key in rows[0] if rows else ():
        table.add_column(
            key.replace("_", " "), justify="right" if not isinstance(rows[0][key], str) else "left"
        )
    for row in rows:
        table.add_row(*(_cell(key, value) for key, value in row.items()))
    return table


def _cell(key: str, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    if key.startswith(("share", "GB")):
        return f"{value:.2f}"
    if key.startswith("overhead"):
        return f"{100 * value:.1f} %"
    return f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.1f} µs"


if __name__ == "__main__":
    sys.exit(main())
