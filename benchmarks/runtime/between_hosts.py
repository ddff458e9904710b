"""Transfers between hosts with links of 1 Gbit/s, through Ray, against the cost model.

    python -m benchmarks.runtime.between_hosts [--megabytes 8,32] [--match TEXT]
        [--output between-hosts.json]

The hosts are network namespaces of this machine (`namespaces.py`), so root is needed. A value goes
forth and back between two meshes, or changes its sharding inside a mesh that has two devices on
each of two hosts, by the plan of the resharding; a round is timed as the difference between steps
with more rounds and with fewer. What the model says comes from a cluster of the same links, 125
MB/s in each direction."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.runtime.namespaces import BYTES_PER_SECOND, LinkedHosts, why_not
from shardopt.forms.exported_program import (
    Argument,
    MeshValue,
    ProgramResult,
    ReshardStep,
    TensorSpec,
)
from shardopt.hardware.cluster import Cluster, Device, Link
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.runtime.driver import open_run
from shardopt.runtime.program.check import check_program
from shardopt.runtime.program.instructions import (
    Free,
    Instruction,
    MeshProgram,
    Program,
    Recv,
    Reshard,
    Route,
    Send,
)
from shardopt.runtime.program.routes import make_route
from shardopt.runtime.run import Run
from shardopt.solve.resharding.plan import bytes_on_wire, plans_seconds
from shardopt.solve.resharding.transfers import plan_resharding

HOSTS = ((0, 1), (2, 3), (4, 5))
_ROUNDS = (1, 3)
_SAMPLES = 5
_DEVICE = Device("cpu", {"f32": 1e10}, 1 << 33, 1e10)
CLUSTER = Cluster.uniform(
    "between-hosts", len(HOSTS), 2, _DEVICE, Link(2e-5, 2e9), Link(1e-4, BYTES_PER_SECOND), 2e-5
)
_FIRST, _SECOND = (
    Mesh(name, (("x", 2),), devices) for name, devices in zip("ab", HOSTS, strict=False)
)
_OTHERS = Mesh("d", (("x", 4),), (2, 3, 4, 5))
_BOTH = Mesh("c", (("x", 4),), (0, 1, 2, 3))
_ROWS, _COLUMNS, _WHOLE = Sharding((("x",), ())), Sharding(((), ("x",))), Sharding(((), ()))


@dataclass(frozen=True)
class Case:
    """So many values of equal size, in one message, go from `source` to `target` and back in every
    round."""

    name: str
    source: tuple[Mesh, Sharding]
    target: tuple[Mesh, Sharding]
    values: int = 1


CASES = (
    Case("host to host, rows to rows", (_FIRST, _ROWS), (_SECOND, _ROWS)),
    Case("host to host, rows to columns", (_FIRST, _ROWS), (_SECOND, _COLUMNS)),
    Case("host to host, rows to replicas", (_FIRST, _ROWS), (_SECOND, _WHOLE)),
    Case("host to two hosts, rows to replicas", (_FIRST, _ROWS), (_OTHERS, _WHOLE)),
    Case("host to two hosts, two values", (_FIRST, _ROWS), (_OTHERS, _WHOLE), 2),
    Case("in a mesh of both, rows to columns", (_BOTH, _ROWS), (_BOTH, _COLUMNS)),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--megabytes", default="8,32", help="of the whole value, separated by commas"
    )
    parser.add_argument("--match", default="", help="only cases with this in their name")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="also write the figures as JSON"
    )
    parser.add_argument("--inside", metavar="ADDRESS", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    sizes = [int(size) for size in args.megabytes.split(",")]
    if args.inside:
        cases = [case for case in CASES if args.match in case.name]
        print(
            json.dumps([measure(case, size << 20, args.inside) for case in cases for size in sizes])
        )
        return 0
    reason = why_not()
    if reason is not None:
        parser.error(reason)
    command = (
        sys.executable,
        "-m",
        "benchmarks.runtime.between_hosts",
        "--megabytes",
        args.megabytes,
        "--match",
        args.match,
        "--inside",
    )
    with LinkedHosts(len(HOSTS)) as hosts:
        done = hosts.run((*command, hosts.address), timeout=900)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        return 1
    rows = json.loads(done.stdout.splitlines()[-1])
    Console(width=120).print(_table(rows))
    if args.output is not None:
        args.output.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def measure(case: Case, bytes: int, address: str) -> dict[str, Any]:
    """Seconds of one round, measured and by the model. Raises AssertionError when the value has
    changed on its way."""
    side = int((bytes / 4 / case.values) ** 0.5)
    shape = (side - side % 4, side - side % 4)
    ends = ((case.source, case.target), (case.target, case.source))
    plans = [plan_resharding(shape, 4, *pair, CLUSTER) for pair in ends]
    routes = tuple(
        _route(plan.to_array(), shape, *pair) for plan, pair in zip(plans, ends, strict=True)
    )
    values = [np.random.default_rng(k).random(shape, np.float32) for k in range(case.values)]
    medians = []
    for rounds in _ROUNDS:
        program = _program(case, shape, routes, rounds)
        assert check_program(program) == ()
        with open_run(program, "ray", ray_address=address, checked_steps=0) as run:
            run.load(values)
            assert all(map(np.array_equal, run.step(), values))
            medians.append(median(_seconds(run) for _ in range(_SAMPLES)))
    measured = (medians[1] - medians[0]) / (_ROUNDS[1] - _ROUNDS[0])
    return {
        "case": case.name,
        "megabytes": sum(value.nbytes for value in values) / 1e6,
        "wire_megabytes": case.values * sum(map(bytes_on_wire, plans)) / 1e6,
        "strategies": [plan.strategy for plan in plans],
        "model_seconds": sum(plans_seconds(CLUSTER, [plan] * case.values) for plan in plans),
        "measured_seconds": measured,
    }


def _seconds(run: Run) -> float:
    begin = perf_counter()
    run.step()
    return perf_counter() - begin


def _route(
    steps: np.ndarray,
    shape: tuple[int, ...],
    source: tuple[Mesh, Sharding],
    target: tuple[Mesh, Sharding],
) -> Route:
    ends = [(mesh, TensorSpec(shape, "float32", sharding)) for mesh, sharding in (source, target)]
    limits = 3 + len(shape)
    read = (
        ReshardStep(row[0], row[1], row[2], tuple(zip(row[3:limits], row[limits:], strict=True)))
        for row in steps.tolist()
    )
    return make_route(ends[0], ends[1], tuple(read))


def _program(case: Case, shape: tuple[int, ...], routes: tuple[Route, ...], rounds: int) -> Program:
    """The values start and end on the source mesh."""
    meshes = tuple(dict.fromkeys((case.source[0], case.target[0])))
    names = [mesh.name for mesh in (case.source[0], case.target[0])]
    lists: dict[str, list[Instruction]] = {mesh.name: [] for mesh in meshes}
    start = TensorSpec(shape, "float32", case.source[1])
    buffers: dict[str, list[TensorSpec]] = {mesh.name: [] for mesh in meshes}
    buffers[names[0]] += [start] * case.values
    latest = tuple(range(case.values))
    for turn in range(2 * rounds):
        giver, taker = names[turn % 2], names[1 - turn % 2]
        first, tag, route = len(buffers[taker]), 8 * turn, routes[turn % 2]
        numbers = tuple(range(first, first + case.values))
        buffers[taker] += [route.target] * case.values
        if giver == taker:
            lists[taker] += [Reshard(tag, latest[0], numbers[0], turn % 2)]
        else:
            of_values = (turn % 2,) * case.values
            lists[giver].append(Send(tag, latest, taker, of_values))
            lists[taker].append(Recv(tag, numbers, giver, of_values))
        if turn:
            lists[giver].append(Free(latest))
        if route.completion is not None:
            lists[taker] += [
                route.completion(tag + 1 + k, number, turn % 2) for k, number in enumerate(numbers)
            ]
        latest = numbers
    own = tuple(enumerate(range(case.values)))
    parts = tuple(
        MeshProgram(
            mesh=mesh,
            buffers=tuple(buffers[mesh.name]),
            arguments=own if mesh.name == names[0] else (),
            indices=(),
            instructions=tuple(lists[mesh.name]),
            results=tuple(enumerate(latest)) if mesh.name == names[0] else (),
            feedback=(),
            functions=(),
        )
        for mesh in meshes
    )
    value = MeshValue(names[0], start)
    arguments = tuple(Argument(f"value{k}", value, None) for k in range(case.values))
    results = tuple(ProgramResult(f"value{k}", value) for k in range(case.values))
    return Program(arguments, results, routes, parts, HOSTS)


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="a value there and back between hosts, 1 Gbit/s")
    for head in ("case", "MB", "MB on wires", "plans", "model s", "measured s", "measured / model"):
        table.add_column(head, justify="left" if head in ("case", "plans") else "right")
    for row in rows:
        ratio = row["measured_seconds"] / row["model_seconds"]
        figures = (f"{row['model_seconds']:.3f}", f"{row['measured_seconds']:.3f}", f"{ratio:.2f}")
        sizes = (f"{row['megabytes']:.1f}", f"{row['wire_megabytes']:.1f}")
        table.add_row(row["case"], *sizes, ", ".join(row["strategies"]), *figures)
    return table


if __name__ == "__main__":
    sys.exit(main())
