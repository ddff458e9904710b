"""Collectives as others measured them, beside what presets predict.

    python -m benchmarks.cost.measured_collectives FILE.csv

The file has the columns hardware, nodes, gpus, collective, bytes, and time_us or busbw_GBps as
nccl-tests defines it. A line of the table is one machine, number of devices and range of sizes: the
median of predicted over measured seconds less one, and how many rows are within 15 %."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from shardopt.cost.collectives import collective_curve
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.cluster_file import load_cluster
from shardopt.measured.machines import preset_of
from shardopt.measured.unstated import InexpressibleRow
from shardopt.mesh.mesh import Mesh

_WITHIN = 0.15
_RANGES = ((4e6, "below 4 MB"), (64e6, "4 to 64 MB"), (float("inf"), "64 MB and more"))


def errors(file: Path) -> Iterator[tuple[tuple[str, int, str], float]]:
    """((hardware, devices, range of sizes), relative error) of every row that a preset covers."""
    with file.open() as lines:
        for row in csv.DictReader(lines):
            size, gpus, hosts = float(row["bytes"]), int(row["gpus"]), int(row["nodes"])
            try:
                preset = preset_of(row["hardware"])
            except InexpressibleRow:
                continue
            if size == 0 or gpus < 2:
                continue
            predicted = _predicted(preset, row["collective"], hosts, gpus, size)
            measured = _measured(row, size, gpus)
            name = next(name for limit, name in _RANGES if size < limit)
            yield (row["hardware"], gpus, name), predicted / measured - 1


def _predicted(preset: str, kind: str, hosts: int, gpus: int, size: float) -> float:
    group = replace(load_cluster(preset).groups[0], hosts=hosts)
    mesh = Mesh("m", (("x", gpus),), tuple(range(gpus)))
    return collective_curve(Cluster(preset, (group,)), mesh, kind, ("x",)).at(size)


def _measured(row: dict[str, str], size: float, gpus: int) -> float:
    if row["time_us"]:
        return 1e-6 * float(row["time_us"])
    share = (2 if row["collective"] == "all_reduce" else 1) * (gpus - 1) / gpus
    return share * size / (1e9 * float(row["busbw_GBps"]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    grouped: dict[tuple[str, int, str], list[float]] = {}
    for key, error in errors(parser.parse_args(argv).file):
        grouped.setdefault(key, []).append(error)
    print("| machine | devices | size | rows | median error | within 15 % |")
    print("|---|---|---|---|---|---|")
    for (hardware, gpus, name), group_errors in grouped.items():
        close = sum(abs(error) <= _WITHIN for error in group_errors)
        print(
            f"| {hardware} | {gpus} | {name} | {len(group_errors)} | "
            f"{median(group_errors):+.0%} | {close} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
