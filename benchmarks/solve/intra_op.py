"""The solver against every baseline: cost under one cost model, bytes exchanged, solve time and
gap.

    python -m benchmarks.solve.intra_op FOLDER [--models '*_tiny*'] [--meshes 1x4,2x4] [--presets
        ilp,data] [--scale 1e4] [--output results.jsonl] [--markdown table.md]

Each model `NAME.mlirbc` of the folder is planned on each mesh of as many hosts as its first axis
says, so that this axis is the slow one. `index.json` beside the models may list `{"name": …,
"batch_args": [numbers]}`. `--scale` divides the rates of devices and links (not the latencies) for
models that are that much smaller than those one would distribute. `--batch-args NAME=I:D,J:D`
overrides the batch of one model. Results are lines of JSON, written as they come; a run with the
same output goes on where it stopped. 1 if a baseline is cheaper than the solver's plan."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from types import MappingProxyType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.solve.intra_op_plans import MEMORY, SOLVER, Record, Task, measure
from shardopt.hardware.cluster import Cluster, Link
from shardopt.hardware.cluster_file import load_cluster
from shardopt.solve.presets.presets import PRESETS

MESHES = ("1x4", "2x4", "4x4", "2x2x2")
# Sums of the same numbers in another order.
_ROUNDING = 1e-12


def cluster_for(spec: str, mesh: str, scale: float) -> Cluster:
    """The cluster with one host for each index of the first axis, `scale` times slower."""
    first, *others = map(int, mesh.split("x"))
    width = 1
    for size in others:
        width *= size
    cluster = load_cluster(f"{spec}:{first}x{width}")
    group = cluster.groups[0]
    device = group.device
    slow = replace(
        group,
        device=replace(
            device,
            peak_flops={dtype: rate / scale for dtype, rate in device.peak_flops.items()},
            memory_bandwidth=device.memory_bandwidth / scale,
        ),
        intra_host=_slower(group.intra_host, scale),
        inter_host=_slower(group.inter_host, scale),
    )
    return replace(cluster, groups=(slow,))


def _slower(link: Link, scale: float) -> Link:
    return replace(link, bandwidth_bytes_per_second=link.bandwidth_bytes_per_second / scale)


def find_models(
    folder: Path, pattern: str, meshes_of: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """(file, batch arguments, `meshes_of` by name or as listed) of the models whose name matches,
    smallest first."""
    index = folder / "index.json"
    listed = (
        {entry["name"]: entry for entry in json.loads(index.read_text())} if index.is_file() else {}
    )
    for path in sorted(folder.glob("*.mlirbc"), key=lambda path: (path.stat().st_size, path.name)):
        if fnmatch(path.stem, pattern):
            numbers = listed.get(path.stem, {}).get("batch_args")
            numbered = ("auto",) if numbers is None else tuple(map(str, numbers)) or ("none",)
            yield (
                path,
                tuple(meshes_of[path.stem].split(",")) if path.stem in meshes_of else numbered,
            )


def read_records(path: Path | None) -> dict[tuple, Record]:
    """The last record of each key; a last line cut short by the end of a process is dropped."""
    records = {}
    for line in path.read_text().splitlines() if path is not None and path.is_file() else ():
        try:
            record = Record(**json.loads(line))
        except json.JSONDecodeError:
            continue
        records[record.key] = record
    return records


def run(tasks: Sequence[Task], output: Path | None, console: Console) -> dict[tuple, Record]:
    """Measure what the output does not hold yet."""
    records = read_records(output)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=sum(len(task.presets) for task in tasks))
        for task in tasks:
            missing = [
                preset for preset in task.presets if task.record(preset, "").key not in records
            ]
            progress.advance(bar, len(task.presets) - len(missing))

            def about_to(
                preset: str, what: str, name: str = f"{task.path.stem} {task.mesh}"
            ) -> None:
                progress.update(bar, description=f"{name} {preset}: {what}")

            for record in measure(replace(task, presets=missing), about_to) if missing else ():
                if record.key not in records:
                    progress.advance(bar)
                records[record.key] = record
                _append(output, record)
            if not console.is_terminal:
                console.print(f"{task.path.stem} {task.mesh}: done")
    return records


def _append(output: Path | None, record: Record) -> None:
    if output is not None:
        with output.open("a") as file:
            file.write(json.dumps(record.as_dict()) + "\n")


def beaten(records: Iterable[Record]) -> Iterator[tuple[Record, Record]]:
    """(baseline, solver) where the baseline is cheaper."""
    records = list(records)
    solved = {
        _place(record): record for record in records if record.preset == SOLVER and record.has_plan
    }
    for record in records:
        best = solved.get(_place(record))
        if best is not None and record.seconds < best.seconds * (1 - _ROUNDING):
            yield record, best


def _place(record: Record) -> tuple[str, str, str, float]:
    return record.model, record.mesh, record.cluster, record.scale


def markdown(records: Iterable[Record], presets: Sequence[str]) -> str:
    """For each mesh a table of models by presets: cost relative to the solver's plan, `–` where a
    preset refuses, `memory` where no plan of it fits; and where modules were compiled, the KiB that
    a device exchanges in a step, planned / compiled."""
    records = list(records)
    lines = []
    for mesh in dict.fromkeys(record.mesh for record in records):
        here = {(record.model, record.preset): record for record in records if record.mesh == mesh}
        shown = [
            preset
            for preset in presets
            if preset != SOLVER and any(key[1] == preset for key in here)
        ]
        lines += [f"### {mesh}", "", *_rows(here, ["ilp", "gap", "solve", *shown], _costs)]
        if any(record.compiled_bytes >= 0 for record in here.values()):
            lines += [f"Exchanged on {mesh}, KiB:", "", *_rows(here, [SOLVER, *shown], _bytes)]
    return "\n".join(lines)


Records = Mapping[tuple[str, str], Record]  # by model and preset


def _rows(
    here: Records, columns: Sequence[str], cells: Callable[[Records, str, Sequence[str]], list[str]]
) -> list[str]:
    models = sorted({model for model, _ in here})
    table = [["model", *columns], ["---"] * (1 + len(columns))]
    table += [[model, *cells(here, model, columns)] for model in models]
    return [*("| " + " | ".join(row) + " |" for row in table), ""]


def _costs(here: Records, model: str, columns: Sequence[str]) -> list[str]:
    best = here.get((model, SOLVER))
    if best is None or not best.has_plan:
        cells = ["–"] * 3
    else:
        cells = [
            f"{best.seconds:.4g} s",
            "optimal" if best.status == "optimal" else f"{best.gap:.2%}",
            f"{best.solve_seconds:.1f} s",
        ]
    return cells + [_relative(here.get((model, preset)), best) for preset in columns[3:]]


def _relative(record: Record | None, best: Record | None) -> str:
    if record is None or not record.has_plan:
        return MEMORY if record is not None and record.status == MEMORY else "–"
    return "?" if best is None or not best.has_plan else f"{record.seconds / best.seconds:.3f}"


def _bytes(here: Records, model: str, columns: Sequence[str]) -> list[str]:
    cells = []
    for preset in columns:
        record = here.get((model, preset))
        if record is None or not record.has_plan:
            cells.append("–")
        else:
            compiled = f"{record.compiled_bytes / 1024:.4g}" if record.compiled_bytes >= 0 else "?"
            cells.append(f"{record.planned_bytes / 1024:.4g} / {compiled}")
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the solver's plans with every baseline.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default="*_tiny*", help="pattern of model names")
    parser.add_argument("--meshes", default=",".join(MESHES))
    parser.add_argument("--presets", default=",".join(PRESETS))
    parser.add_argument(
        "--cluster", default="a100-80g", help="preset or file; hosts follow from the mesh"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="how many times slower devices and links are"
    )
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds a solve")
    parser.add_argument("--gap", type=float, default=0.001)
    parser.add_argument("--memory-fraction", type=float, default=0.9, help="0 removes the limit")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--batch-args", action="append", default=[], metavar="NAME=I,J:D")
    parser.add_argument("--output", type=Path, help="lines of JSON, continued if the file exists")
    parser.add_argument("--markdown", type=Path, help="write the table here too")
    args = parser.parse_args()
    presets = tuple(args.presets.split(","))
    if unknown := [preset for preset in presets if preset not in PRESETS]:
        parser.error(f"unknown preset '{unknown[0]}'; expected some of {', '.join(PRESETS)}")
    tasks = [
        Task(
            path,
            batch,
            mesh,
            cluster_for(args.cluster, mesh, args.scale),
            args.scale,
            presets,
            args.time_limit,
            args.gap,
            args.memory_fraction,
            not args.no_compile,
        )
        for path, batch in find_models(
            args.folder, args.models, dict(item.split("=", 1) for item in args.batch_args)
        )
        for mesh in args.meshes.split(",")
    ]
    console = Console(width=None if sys.stdout.isatty() else 240)
    records = run(tasks, args.output, console).values()
    table = markdown(records, presets)
    if args.markdown is not None:
        args.markdown.write_text(table + "\n")
    console.print(table, markup=False, highlight=False)
    cheaper = list(beaten(records))
    for record, best in cheaper:
        console.print(
            f"CHEAPER: {record.model} {record.mesh} {record.preset}: {record.seconds} < "
            f"{best.seconds}"
        )
    return int(bool(cheaper))


if __name__ == "__main__":
    sys.exit(main())
