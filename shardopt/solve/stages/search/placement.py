"""The devices of each stage, such that as few neighbours in the pipeline as possible are on
different hosts.

Alpa sorts the stages by size and scatters them: 32 stages of one device on 4 hosts of 8 gave 5
transfers between hosts where 3 are needed. Here the number of transfers between hosts is minimal in
every host group.

    stages  1x2  1x4  1x1  1x1      hosts  0: 1x2 1x1 1x1  1: 1x4      2 transfers between hosts

1. Whole hosts are taken by the stages that need them; the others share the rest.
2. An A* search lays the small stages out in pipeline order: a stage goes on the host of the stage
   before it, or on another one, and then a transfer crosses hosts. The bound is the number of
   crossings if there were any number of hosts.
3. Blocks of devices that belong together (a shared host, the hosts of one stage) are numbered by
   their first stage."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardopt.hardware.cluster import Cluster, HostGroup, Submesh
from shardopt.support.errors import UserError

# After so many steps the search only goes on from the furthest node: the packing is then not proven
# to have the fewest crossings. Pipelines of powers of two on 16 hosts of 8 take tens to hundreds of
# steps.
_PROVING_STEPS = 10_000
# With sizes that do not divide each other the search may run into dead ends; it gives up after so
# many steps.
_MOST_STEPS = 20_000


def place(cluster: Cluster, stages: Sequence[tuple[int, Submesh]]) -> tuple[tuple[int, ...], ...]:
    """Global device ids of each pipeline stage (host group, submesh): contiguous, inside one host
    or on whole neighbouring hosts of its group. Groups of sizes that divide each other (powers of
    two) pack whenever any packing exists.

    Raises UserError if a stage fits no host, or the stages do not pack.
    """
    starts = [0] * len(stages)
    for index, group in enumerate(cluster.groups):
        members = [stage for stage, (owner, _) in enumerate(stages) if owner == index]
        submeshes = [stages[stage][1] for stage in members]
        _check(cluster, group, members, submeshes)
        starts_in_group = _place_in_group(group, members, submeshes)
        if starts_in_group is None:
            shapes = ", ".join(map(str, submeshes))
            where = (
                f"cluster {cluster}"
                if len(cluster.groups) == 1
                else f"host group {group} of cluster {cluster}"
            )
            raise UserError(
                f"cannot place {len(members)} stages with submeshes {shapes} on {where}"
            )
        for stage, start in zip(members, starts_in_group, strict=True):
            starts[stage] = cluster.first_devices[index] + start
    return tuple(
        tuple(range(at, at + mesh.num_devices))
        for at, (_, mesh) in zip(starts, stages, strict=True)
    )


def _check(
    cluster: Cluster, group: HostGroup, members: Sequence[int], submeshes: Sequence[Submesh]
) -> None:
    width = group.devices_per_host
    for stage, submesh in zip(members, submeshes, strict=True):
        if submesh.devices_per_host > width or (
            submesh.hosts > 1 and submesh.devices_per_host != width
        ):
            raise UserError(
                f"stage {stage}: submesh {submesh} is neither inside one host nor whole hosts of "
                f"{cluster if len(cluster.groups) == 1 else group}"
            )


def _place_in_group(
    group: HostGroup, members: Sequence[int], stages: Sequence[Submesh]
) -> tuple[int, ...] | None:
    """First device of every stage, counted from the group's first; `members` are their numbers in
    the pipeline."""
    width = group.devices_per_host
    small = [k for k, submesh in enumerate(stages) if submesh.devices_per_host < width]
    whole = [k for k, submesh in enumerate(stages) if submesh.devices_per_host == width]
    # A small stage cannot use what a stage of whole hosts leaves over: that leaves nothing.
    shared = group.hosts - sum(stages[k].hosts for k in whole)
    if shared < 0:
        return None
    sizes = [stages[k].num_devices for k in small]
    numbers = [members[k] for k in small]
    # A stage of whole hosts between two small ones crosses hosts on either side, wherever these
    # lie.
    joined = [k > 0 and numbers[k] == numbers[k - 1] + 1 for k in range(len(small))]
    bins = _fewest_crossings(_Packing(sizes, joined, width, shared))
    if bins is None:
        return None
    starts, cursor = [0] * len(stages), 0
    # Blocks by their first stage, so that what follows in the pipeline has neighbouring numbers.
    for block in sorted(
        [*([small[k] for k in host] for host in bins if host), *([k] for k in whole)]
    ):
        for k in block:
            starts[k] = cursor
            cursor += stages[k].num_devices
        cursor += -cursor % width
    return tuple(starts)


@dataclass(frozen=True)
class _Packing:
    """Small stages to be laid on hosts. `joined[k]`: the stage follows the one before it in the
    pipeline."""

    sizes: Sequence[int]
    joined: Sequence[bool]
    width: int
    hosts: int

    def bounds(self) -> list[list[int]]:
        """`[k][f]`: the fewest crossings from stage k on, if the current host has f free devices
        and other hosts are as many as one likes: a stage then stays whenever it fits."""
        rows = [[0] * (self.width + 1)]
        for size, joined in zip(reversed(self.sizes), reversed(self.joined), strict=True):
            after = rows[-1]
            moved = after[self.width - size]
            rows.append(
                [
                    after[f - size] if f >= size and joined else moved + joined
                    for f in range(self.width + 1)
                ]
            )
        return rows[::-1]

    def needs(self) -> list[dict[int, int]]:
        """`[k][s]`: blocks of s devices that the stages of at least s devices from stage k on
        take."""
        rows = [dict.fromkeys(sorted(set(self.sizes)), 0)]
        for size in reversed(self.sizes):
            rows.append({s: blocks + size // s for s, blocks in rows[-1].items()})
        return rows[::-1]


def _fewest_crossings(packing: _Packing) -> list[list[int]] | None:
    """The stages on each host, so that the fewest lie on another host than the stage they are
    joined to; None where there is no packing (or none was found in `_MOST_STEPS`).

    A node of the search is the hosts of the first stages; hosts with equally many free devices are
    equal."""
    bounds, needs, count = packing.bounds(), packing.needs(), len(packing.sizes)
    queue: list[tuple[int, int, int, int, tuple[int, ...], tuple[int, ...]]] = []
    heapq.heappush(queue, (0, 0, 0, 0, (), (packing.width,) * packing.hosts))
    seen: set[tuple[int, int, tuple[int, ...]]] = set()
    steps = 0
    while queue and steps < _MOST_STEPS:
        _, depth, _, crossings, chosen, free = heapq.heappop(queue)
        stage, steps = -depth, steps + 1
        if stage == count:
            return [[k for k in range(count) if chosen[k] == host] for host in range(packing.hosts)]
        key = (stage, free[chosen[-1]] if chosen else 0, tuple(sorted(free)))
        if key in seen:
            continue
        seen.add(key)
        for host, left in _moves(packing, stage, chosen, free):
            # A dead end: the stages still to come need more blocks of s devices than the hosts have
            # left.
            if any(sum(f // s for f in left) < blocks for s, blocks in needs[stage + 1].items()):
                continue
            paid = crossings + (packing.joined[stage] and host != chosen[-1])
            # Past the limit all new totals are equal and the least, and the heap then prefers
            # depth: the search dives to any packing.
            total = paid + bounds[stage + 1][left[host]] if steps < _PROVING_STEPS else -1
            heapq.heappush(queue, (total, depth - 1, host, paid, (*chosen, host), left))
    return None


def _moves(
    packing: _Packing, stage: int, chosen: Sequence[int], free: tuple[int, ...]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(host, free devices of all hosts afterwards): the current host, and one of every other
    kind."""
    size = packing.sizes[stage]
    current = chosen[-1] if chosen else -1
    # Hosts with equally many free devices are alike: the first of each kind stands for all.
    kinds = {free[host]: host for host in reversed(range(packing.hosts)) if host != current}
    for host in sorted({*kinds.values(), *([current] if chosen else [])}):
        if free[host] >= size:
            yield host, (*free[:host], free[host] - size, *free[host + 1 :])
