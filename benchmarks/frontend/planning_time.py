"""How long planning takes, and how that grows with the model: a table.

    python -m benchmarks.frontend.planning_time gpt-350m gpt-39b     # models of benchmarks/alpa
    python -m benchmarks.frontend.planning_time model.mlirbc --cluster a100-80g:4x8 --microbatches 8

Every run is a process of its own. Of each model there are three: with an empty cache (cold), the
same again (warm: the whole plan is in the cache), and for another schedule (prices: those of the
stages are in the cache, the plan is not). Peak memory is that of the cold run. `--json FILE` keeps
everything that was measured."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.frontend.plan_runs import run_case
from shardopt.hardware.cluster_file import load_cluster
from shardopt.pipeline.phases import PHASE_NAMES

# The schedule of the third run, whose stages cost the same unless memory binds.
_OTHER_SCHEDULE = "gpipe"
_STATISTICS = {
    "candidates": "stage candidates",
    "costs": "exact stage costs",
    "solves": "sharding problems solved",
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="file, or the name of a model of benchmarks/alpa"
    )
    parser.add_argument("--cluster", help="of files; models of benchmarks/alpa have theirs")
    parser.add_argument("--microbatches", type=int, default=8, help="of files")
    parser.add_argument("--layers", type=int, help="of files")
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds that one run may take")
    parser.add_argument(
        "--only-cold", action="store_true", help="leave out the runs with a filled cache"
    )
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="show seconds of the processor, for a machine that is shared",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    args = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            rows.append(_measured(name, Path(folder), args))
            print(f"{name}: {rows[-1]['cold'].get('seconds', '-')} s", file=sys.stderr)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    Console(width=200).print(_table(rows, "cpu_" if args.cpu else ""))
    return (
        0
        if all("crash" not in run for row in rows for run in row.values() if isinstance(run, dict))
        else 1
    )


def _measured(name: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    model, options = _case(name, folder, args)
    cache = folder / f"cache-{model.stem}"
    cold = run_case(model, options, cache, args.limit)
    row: dict[str, Any] = {"name": model.stem, "options": options, "cold": cold}
    if not args.only_cold and "step_seconds" in cold:
        row["warm"] = run_case(model, options, cache, args.limit)
        row["prices"] = run_case(model, {**options, "schedule": _OTHER_SCHEDULE}, cache, args.limit)
    return row


def _case(name: str, folder: Path, args: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """The file of a model, and its options; a model of benchmarks/alpa is traced in a process of
    its own."""
    if Path(name).is_file():
        if args.cluster is None:
            raise SystemExit(f"--cluster is needed for the file '{name}'")
        return Path(name), {
            "cluster": args.cluster,
            "microbatches": args.microbatches,
            "layers": args.layers,
        }
    from benchmarks.alpa.methods import options
    from benchmarks.alpa.specs import find_case

    path = folder / f"{name}.mlirbc"
    subprocess.run(
        [sys.executable, "-m", "benchmarks.alpa.models", name, "-o", str(path)], check=True
    )
    chosen = asdict(options(find_case(name), "shardopt"))
    return path, {**chosen, "recompute": "auto"}  # no module that the command writes recomputes


def _table(rows: Sequence[dict[str, Any]], clock: str) -> Table:
    """`clock` begins the names of the figures."""
    title = "seconds of the processor" if clock else "seconds"
    table = Table(
        "model",
        title=f"{title} of planning, by phase and in all",
        caption="peak: memory of the cold run",
    )
    for name in (
        "ops",
        "layers",
        "devices",
        *_STATISTICS,
        *PHASE_NAMES,
        "cold",
        "warm",
        "prices",
        "peak",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        cold = row["cold"]
        if "step_seconds" not in cold:
            table.add_row(row["name"], cold.get("crash", cold.get("error", ""))[:60])
            continue
        statistics = cold["statistics"]
        table.add_row(
            row["name"],
            str(cold["ops"]),
            str(int(statistics["layers"])),
            str(load_cluster(row["options"]["cluster"]).num_devices),
            *(
                str(int(statistics[key])) if key in statistics else "–"
                for key in _STATISTICS.values()
            ),
            *(f"{cold[f'{clock}phases'][phase]:.1f}" for phase in PHASE_NAMES),
            f"{cold[f'{clock}seconds']:.1f}",
            *(
                f"{row[run][f'{clock}seconds']:.1f}" if "seconds" in row.get(run, {}) else "–"
                for run in ("warm", "prices")
            ),
            f"{cold['peak_bytes'] / 2**20:.0f} MiB",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
