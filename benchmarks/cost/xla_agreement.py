"""Does XLA exchange what was planned? Every model of a folder: bytes by kind and mesh axis,
predicted and compiled.

    python -m benchmarks.cost.xla_agreement FOLDER [--mesh 4] [--mesh 2x2] [--format sdy] [--plan
        ilp] [--plan random:1] [--match '*_tiny*'] [--json FILE] [--markdown FILE]

A model is `NAME.mlirbc`. Each is planned, annotated and compiled for host devices in a process of
its own, which XLA may end. A row agrees when the bytes of all kinds and axes together differ by at
most `--tolerance` of the planned ones, and XLA logged no "involuntary full rematerialization". How
the bytes are counted: `shardopt.cost.traffic`. Exit code 1 if a row disagrees."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.cost.xla_agreement_case import FORMATS
from benchmarks.solve.intra_op import find_models
from shardopt.cost.traffic import Traffic, TrafficDifference, agree, compare

REMATERIALIZATION = "Involuntary full rematerialization"


@dataclass(frozen=True)
class Row:
    """One model, mesh, plan and format. `verdict` is "agree", "DIFFER" or "failed", with the reason
    in `note`."""

    model: str
    mesh: str
    plan: str
    format: str
    verdict: str
    differences: tuple[TrafficDifference, ...] = ()
    rematerializations: int = 0
    compile_seconds: float = 0.0
    note: str = ""

    @property
    def predicted_bytes(self) -> int:
        return sum(row.predicted_bytes for row in self.differences)

    @property
    def found_bytes(self) -> int:
        return sum(row.found_bytes for row in self.differences)

    @property
    def ratio(self) -> float:
        """Compiled bytes over planned ones."""
        return (
            self.found_bytes / self.predicted_bytes
            if self.predicted_bytes
            else float(not self.found_bytes)
        )

    def to_json(self) -> dict[str, object]:
        totals = {"predicted_bytes": self.predicted_bytes, "found_bytes": self.found_bytes}
        return asdict(self) | totals


def measure(
    model: tuple[Path, tuple[str, ...]], mesh: str, plan: str, args: argparse.Namespace
) -> Iterator[Row]:
    """One row for each format, from a process of its own."""
    path, batch = model
    command = [
        sys.executable,
        "-m",
        "benchmarks.cost.xla_agreement_case",
        str(path),
        mesh,
        "--plan",
        plan,
    ]
    command += ["--formats", ",".join(args.format), "--batch-args=" + ",".join(batch)]
    command += ["--scale", str(args.scale), "--time-limit", str(args.solve_limit)]
    note = ""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=args.timeout,
            check=False,
        )
        stdout, stderr, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as stopped:
        stdout, stderr, code = stopped.stdout or b"", stopped.stderr or b"", 0
        note = f"not compiled within {args.timeout:.0f} s"
    messages = _by_format(stderr.decode(errors="replace"))
    records = {record["format"]: record for record in map(json.loads, stdout.decode().splitlines())}
    for name in args.format:
        if name in records:
            yield _row(
                (path.stem, mesh, plan, name), records[name], messages.get(name, ""), args.tolerance
            )
        else:
            last = (stderr.decode(errors="replace").strip().splitlines() or [f"exit code {code}"])[
                -1
            ]
            yield Row(path.stem, mesh, plan, name, "failed", note=note or last)


def _by_format(text: str) -> dict[str, str]:
    """What the process said while it compiled each format."""
    parts = text.split("compiling as ")[1:]
    return {part.split("\n", 1)[0].strip(): part for part in parts}


def _row(name: tuple[str, str, str, str], record: dict, messages: str, tolerance: float) -> Row:
    differences = compare(_traffic(record["predicted"]), _traffic(record["emitted"]))
    gathered = messages.count(REMATERIALIZATION)
    verdict = "agree" if agree(differences, tolerance) and not gathered else "DIFFER"
    return Row(*name, verdict, differences, gathered, record["compile_seconds"])


def _traffic(rows: Sequence[dict]) -> Iterator[Traffic]:
    return (Traffic(row["kind"], tuple(row["axes"]), row["tensors"], row["bytes"]) for row in rows)


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table for the documentation."""
    lines = [
        "| model | mesh | plan | format | predicted | compiled | ratio | verdict | "
        "where they differ |"
    ]
    lines.append("|---|---|---|---|---:|---:|---:|---|---|")
    return "\n".join([*lines, *("| " + " | ".join(_cells(row)) + " |" for row in rows), ""])


def _cells(row: Row) -> tuple[str, ...]:
    where = "; ".join(str(each) for each in row.differences if each.excess_bytes)
    warned = f"{row.rematerializations} rematerializations" if row.rematerializations else ""
    notes = "; ".join(filter(None, (row.note, warned, where)))
    figures = (f"{row.predicted_bytes:,}", f"{row.found_bytes:,}", f"{row.ratio:.3f}")
    return (row.model, row.mesh, row.plan, row.format, *figures, row.verdict, notes or "–")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Predicted against compiled collectives of every model of a folder."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--match", default="*_tiny*", help="pattern of model names")
    parser.add_argument("--mesh", action="append")
    parser.add_argument("--plan", action="append", help="a preset, or random:SEED; default: ilp")
    parser.add_argument("--format", action="append", choices=FORMATS)
    parser.add_argument(
        "--scale", type=float, default=1e3, help="how many times slower devices and links are"
    )
    parser.add_argument("--solve-limit", type=float, default=60.0, help="seconds a solve")
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds for one model on one mesh"
    )
    parser.add_argument("--tolerance", type=float, default=0.05)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    args.format = args.format or list(FORMATS)
    rows: list[Row] = []
    for model in find_models(args.folder, args.match):
        for mesh in args.mesh or ("4", "2x2"):
            for plan in args.plan or ("ilp",):
                for row in measure(model, mesh, plan, args):
                    rows.append(row)
                    print(" ".join(_cells(row)), flush=True)
    print(f"{sum(row.verdict == 'agree' for row in rows)} of {len(rows)} rows agree")
    if args.json:
        args.json.write_text(json.dumps([row.to_json() for row in rows], indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(markdown(rows))
    return int(any(row.verdict != "agree" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
