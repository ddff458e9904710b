"""How long the sharding of a whole module takes, part by part, and how large its assignment problem
is.

    python -m benchmarks.solve.intra_op_speed FOLDER [--models
        hf_gpt2_small.train,hf_resnet50.train] [--meshes 1x4,2x4] [--cluster a100-80g] [--time-limit
        60] [--json results.json] [--markdown table.md]

Each model `NAME.mlirbc` of the folder goes through `shardopt-intra` on each mesh, in a process of
its own so that peak memory and caches are those of one run. The cluster has as many hosts as the
first axis of the mesh says. Seconds are wall time, with the CPU seconds of the whole beside them,
which tell more on a busy machine. `presolve` is part of `solve`. `tied` is the objective with equal
layers tied to one choice, in units of the final one."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time

from rich.console import Console

MODELS = (
    "hf_gpt2_small.train",
    "hf_resnet50.train",
    "penzai_llama_scan.train",
    "ed_mixtral_8x7b.train",
    "hf_gpt3_350m.train",
    "hf_gpt3_15b.train",
)
MESHES = ("1x4", "2x4", "4x4", "2x2x2")
PARTS = ("import", "read", "strategies", "build", "presolve", "solve", "write")
_PASS = "shardopt-choose-shardings"
_SPAN = "sharding program: "


@dataclass(frozen=True)
class Row:
    """One model on one mesh. `seconds` are by part; `error` says why the rest is missing."""

    model: str
    mesh: str
    nodes: int = 0
    strategies: int = 0
    table_entries: int = 0
    seconds: tuple[tuple[str, float], ...] = ()
    total_seconds: float = 0.0
    cpu_seconds: float = 0.0
    objective: float = 0.0
    tied_objective: float = 0.0
    gap: float = 0.0
    peak_bytes: int = 0
    error: str = ""


def measured(path: Path, mesh: str, cluster: str, time_limit: float, more: str = "") -> Row:
    """`measure` in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(measure, path, mesh, cluster, time_limit, more).result()


def measure(path: Path, mesh: str, cluster: str, time_limit: float, more: str = "") -> Row:
    """Shard one module; meant for a fresh process. `more` options are those of `shardopt-intra`."""
    from shardopt.ir.context import make_context
    from shardopt.ir.diagnostics import DiagnosedError
    from shardopt.ir.io import load_module
    from shardopt.ir.trial import reads_in_child
    from shardopt.pipeline.manager import run_pipeline

    hosts, _, width = mesh.partition("x")
    per_host = 1
    for size in width.split("x"):
        per_host *= int(size)
    options = f"mesh={mesh} cluster={cluster}:{hosts}x{per_host} time-limit={time_limit} {more}"
    reads_in_child()  # as in the commands, which no other process reads for either
    begin, begin_cpu = perf_counter(), process_time()
    with make_context() as context:
        module = load_module(path, context)
        try:
            result = run_pipeline(module, f"builtin.module(shardopt-intra{{{options}}})")
        except DiagnosedError as error:
            return Row(path.stem, mesh, error=str(error).splitlines()[0])
    total, cpu = perf_counter() - begin, process_time() - begin_cpu
    step = next(step for step in result.steps if step.leaf.name == _PASS)
    spans = {name.removeprefix(_SPAN).split()[0]: time.wall for name, time in step.spans.items()}
    spans["import"] = total - step.time.wall
    numbers = {name.partition(": ")[2]: value for name, value in step.statistics.items()}
    return Row(
        path.stem,
        mesh,
        int(numbers["nodes"]),
        int(numbers["strategies"]),
        int(numbers["table entries"]),
        tuple((part, spans.get(part, 0.0)) for part in PARTS),
        total,
        cpu,
        numbers["objective"],
        numbers.get("objective with equal layers tied", 0.0),
        numbers["gap"],
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def markdown(rows: Sequence[Row]) -> str:
    """A table with one line a model and mesh."""
    head = (
        "model",
        "mesh",
        "nodes",
        "strategies",
        "entries",
        *PARTS,
        "all",
        "CPU",
        "objective",
        "tied",
        "gap",
        "MB",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        if row.error:
            lines.append(f"| {row.model} | {row.mesh} | {row.error} |" + " |" * (len(head) - 3))
            continue
        tied = f"{row.tied_objective / row.objective:.4f}" if row.tied_objective else "–"
        cells = [row.model, row.mesh, f"{row.nodes}", f"{row.strategies}", f"{row.table_entries}"]
        cells += [f"{seconds:.1f}" for _, seconds in row.seconds]
        cells += [
            f"{row.total_seconds:.1f}",
            f"{row.cpu_seconds:.1f}",
            f"{row.objective:.5g}",
            tied,
        ]
        cells += [f"{row.gap:.2%}", f"{row.peak_bytes / 1e6:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Time the sharding of whole modules.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--meshes", default=",".join(MESHES))
    parser.add_argument("--cluster", default="a100-80g")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    console, rows = Console(width=200), []
    for name in args.models.split(","):
        for mesh in args.meshes.split(","):
            path = args.folder / f"{name}.mlirbc"
            if not path.is_file():
                parser.error(f"expected a file {path}, found none")
            rows.append(measured(path, mesh, args.cluster, args.time_limit))
            console.print(markdown(rows[-1:]).splitlines()[-1], markup=False)
            if args.json:
                args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
