"""What reshardings between meshes move, how long they are predicted to take, and how long planning
them takes.

    python -m benchmarks.solve.resharding
    python -m benchmarks.solve.resharding --large
    python -m benchmarks.solve.resharding --random
    python -m benchmarks.solve.resharding --plans PLAN…

The first counts the small cases and the public nine-case suite (`resharding_cases.py`) for every
strategy. The second plans them for meshes of 64 to 2048 devices each. The third draws slices and
messages between hosts at random, and says what choosing senders and ordering messages is worth. The
last reads plan directories of `shardopt plan`, plans the transfers of each once more, and sets
their predicted seconds beside those with which the stages were chosen, when nobody knew yet how
values would lie. Tables are Markdown; times are CPU seconds of this process."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from time import process_time

from benchmarks.solve.resharding_cases import LARGE, SMALL, SUITE, Case, cluster_of
from benchmarks.solve.resharding_random import HEAD as RANDOM_HEAD
from benchmarks.solve.resharding_random import random_order, random_senders
from shardopt.cost.transfers import even_messages, messages_seconds
from shardopt.hardware.cluster import Cluster
from shardopt.solve.resharding.plan import (
    ReshardingPlan,
    elements_by_nic,
    elements_on_wire,
    elements_passed_on,
    messages,
    plans_seconds,
)
from shardopt.solve.resharding.slices import TileGrid, volume
from shardopt.solve.resharding.strategies import Resharding
from shardopt.solve.resharding.transfers import AUTO, plan_together

STRATEGIES = ("send_recv", "local_allgather", "broadcast", AUTO)
_MI = 1 << 20
_REPEAT = 3  # plans, of which the fastest counts


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--large", action="store_true", help="planning time for meshes of up to 2048 devices"
    )
    parser.add_argument(
        "--random", action="store_true", help="balance and order of random messages"
    )
    parser.add_argument("--plans", nargs="+", type=Path, metavar="PLAN", help="plan directories")
    args = parser.parse_args(argv)
    if args.plans:
        print(_table(_PLANS_HEAD, (row for plan in args.plans for row in plan_rows(plan))))
    elif args.large:
        print(_table(_LARGE_HEAD, map(large_row, LARGE)))
    elif args.random:
        print(_table(RANDOM_HEAD, (random_order(2000), random_senders(400))))
    else:
        print(_table(_SMALL_HEAD, (row for case in SMALL for row in small_rows(case))))
        print()
        print(_table(_SUITE_HEAD, (row for case in SUITE for row in suite_rows(case))))
    return 0


# ---- the cases ----


def planned(case: Case, strategy: str) -> tuple[ReshardingPlan, Cluster]:
    cluster = cluster_of(case)
    return plan_together((case.resharding,), cluster, strategy)[0], cluster


_SMALL_HEAD = ("case", "strategy", "elements on the wire", "messages", "elements passed on")


def small_rows(case: Case) -> Iterator[tuple[str, ...]]:
    for strategy in STRATEGIES[:-1]:
        plan, _ = planned(case, strategy)
        counts = elements_on_wire(plan), messages(plan), elements_passed_on(plan)
        yield (f"{case.name}: {case}", strategy, *map(str, counts))


_SUITE_HEAD = (
    "case",
    "strategy",
    "wire",
    "busiest sender",
    "busiest receiver",
    "passed on",
    "messages",
    "ms",
    "× bound",
)


def suite_rows(case: Case) -> Iterator[tuple[str, ...]]:
    """Elements in Mi = 2^20; a host's elements are those through its network card, in all
    phases."""
    for strategy in STRATEGIES:
        plan, cluster = planned(case, strategy)
        nics = elements_by_nic(plan, cluster).values()
        counts = (
            elements_on_wire(plan),
            max(out for out, _ in nics),
            max(into for _, into in nics),
        )
        seconds = plans_seconds(cluster, [plan])
        yield (
            f"{case.name}: {case}",
            f"auto: {plan.strategy}" if strategy == AUTO else strategy,
            *(f"{count / _MI:.0f}" for count in (*counts, elements_passed_on(plan))),
            str(messages(plan)),
            f"{1e3 * seconds:.1f}",
            f"{seconds / bound_seconds(case.resharding, cluster):.2f}",
        )


def bound_seconds(resharding: Resharding, cluster: Cluster) -> float:
    """What no plan undercuts where no host has devices of both meshes: every element leaves the
    source once, and every host of the destination receives each element that its devices need."""
    grid = TileGrid.of(*resharding.destination, resharding.shape)
    into: dict[int, int] = {}
    for number, devices in grid.holders.items():
        for host in {cluster.host_of(device) for device in devices}:
            into[host] = into.get(host, 0) + volume(grid.tile(number))
    senders = {cluster.host_of(device) for device in resharding.source[0].devices}
    total = sum(volume(grid.tile(number)) for number in grid.holders)
    link = cluster.groups[0].inter_host
    busiest = max(max(into.values()), total / len(senders)) * resharding.itemsize
    return link.latency_seconds + busiest / link.bandwidth_bytes_per_second


_LARGE_HEAD = ("case", "devices", "strategy", "rows", "phases", "ms", "planning s")


def large_row(case: Case) -> tuple[str, ...]:
    cluster = cluster_of(case)
    spent = []
    for _ in range(_REPEAT):
        begin = process_time()
        (plan,) = plan_together((case.resharding,), cluster, AUTO)
        spent.append(process_time() - begin)
    rows = sum(map(len, plan.phases))
    seconds = plans_seconds(cluster, [plan])
    devices = (
        f"{case.source_shape[0] * case.source_shape[1]} → "
        f"{case.target_shape[0] * case.target_shape[1]}"
    )
    figures = (str(rows), str(len(plan.phases)), f"{1e3 * seconds:.2f}", f"{min(spent):.3f}")
    return (f"{case.name}: {case}", devices, plan.strategy, *figures)


# ---- plans of models ----

_PLANS_HEAD = (
    "plan",
    "transfers",
    "messages",
    "rows",
    "wire MiB",
    "planning ms",
    "slowest message: planned ms",
    "estimated ms",
    "sum of all: planned ms",
    "estimated ms",
)


def plan_rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """The transfers of a step's microbatch and of what stands outside the loop, as
    `insert-transfers` groups them."""
    groups, cluster = read_groups(folder)
    begin = process_time()
    plans = [plan_together(group, cluster) for group in groups]
    spent = process_time() - begin
    seconds = [plans_seconds(cluster, group) for group in plans]
    estimated = [_estimate(group, cluster) for group in groups]
    flat = [plan for group in plans for plan in group]
    rows = sum(len(phase) for plan in flat for phase in plan.phases)
    wire = sum(elements_on_wire(plan) * plan.itemsize for plan in flat) / _MI
    times = (1e3 * each for each in (max(seconds), max(estimated), sum(seconds), sum(estimated)))
    counts = (len(flat), len(groups), rows)
    yield (
        folder.name,
        *map(str, counts),
        f"{wire:.1f}",
        f"{1e3 * spent:.1f}",
        *(f"{each:.3f}" for each in times),
    )


def read_groups(folder: Path) -> tuple[list[tuple[Resharding, ...]], Cluster]:
    """The reshardings that travel together, and the cluster they are planned for."""
    from shardopt.dialect.cluster import read_cluster
    from shardopt.dialect.mpmd import read_topology
    from shardopt.dialect.program import read_program
    from shardopt.extract.transfer_groups import transfer_groups
    from shardopt.frontend.plans.plan import Plan
    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module
    from shardopt.passes.pipelining.insert_transfers import read_resharding

    with make_context() as context:
        module = load_module(Plan.load(folder).module, context)
        program = read_program(module)
        meshes = {mesh.name: mesh for mesh in read_topology(program.main)}
        groups = [
            tuple(read_resharding(op, meshes) for op in ops) for ops in transfer_groups(program)
        ]
        return groups, read_cluster(module)


def _estimate(group: Sequence[Resharding], cluster: Cluster) -> float:
    """As the stage DP prices a cut: everything spread evenly over both meshes."""
    size = 0
    for each in group:
        grid = TileGrid.of(*each.source, each.shape)
        size += sum(volume(grid.tile(number)) for number in grid.holders) * each.itemsize
    ends = (group[0].source[0].devices, group[0].destination[0].devices)
    return messages_seconds(cluster, even_messages(*ends, size))


# ---- Markdown ----


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    raise SystemExit(main())
