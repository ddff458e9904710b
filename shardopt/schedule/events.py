"""The times of all tasks and transfers of a linked schedule, in plain numbers.

Where no two transfers share a link and no two meshes share a host, a task's time follows from those
before it: one walk in an order that respects them (`Times.in_order`). Otherwise what comes first
decides, so events are played as they happen (`Times.by_events`). Both give the same where both
apply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from shardopt.hardware.sharing import Sharing
from shardopt.schedule.clocks import Clock, FixedClock, SharedClock
from shardopt.schedule.validate import LinkedSchedule

Moved = tuple[int, int, float, float]  # a transfer: source node, target node, start, end


@dataclass(frozen=True)
class NodeCosts:
    """Seconds of each node and of each edge of the graph; the links that an edge's transfers use;
    how meshes share hosts; and whether a mesh computes while it sends."""

    node_seconds: Sequence[float]
    transfer_seconds: Sequence[float]
    links: Sequence[Sequence[int]]
    sharing: Sharing | None = None
    overlap: bool = True


@dataclass(frozen=True)
class Times:
    """`starts` and `ends` by node, `delays` by edge of the graph; `moved` where transfers waited
    for links."""

    starts: list[float]
    ends: list[float]
    delays: tuple[float, ...]
    moved: tuple[Moved, ...] | None = None

    def transfers(self, linked: LinkedSchedule) -> list[Moved]:
        """Those that take time, by target and then by source, as in the lists."""
        if self.moved is not None:
            return sorted(self.moved, key=itemgetter(1))
        moved = []
        for node, sources in enumerate(linked.predecessors):
            for source, edge in sources:
                if self.delays[edge] > 0:
                    moved.append(
                        (source, node, self.ends[source], self.ends[source] + self.delays[edge])
                    )
        return moved

    @staticmethod
    def of(linked: LinkedSchedule, costs: NodeCosts) -> Times:
        contended = any(
            seconds > 0 and links
            for seconds, links in zip(costs.transfer_seconds, costs.links, strict=True)
        )
        return (
            Times.by_events(linked, costs)
            if contended or costs.sharing is not None
            else Times.in_order(linked, costs)
        )

    @staticmethod
    def in_order(linked: LinkedSchedule, costs: NodeCosts) -> Times:
        mesh_of, predecessors, seconds = linked.mesh_of, linked.predecessors, costs.transfer_seconds
        starts, ends = [0.0] * len(mesh_of), [0.0] * len(mesh_of)
        free = [0.0] * linked.schedule.num_meshes
        busy_after = _longest_send(linked, seconds) if not costs.overlap else None
        for node in linked.order:
            start = free[mesh_of[node]]
            for source, edge in predecessors[node]:
                arrival = ends[source] + seconds[edge]
                if arrival > start:
                    start = arrival
            end = start + costs.node_seconds[node]
            starts[node], ends[node] = start, end
            free[mesh_of[node]] = end if busy_after is None else end + busy_after[node]
        return Times(starts, ends, tuple(seconds))

    @staticmethod
    def by_events(linked: LinkedSchedule, costs: NodeCosts) -> Times:
        mesh_of, readers = linked.mesh_of, linked.readers
        count = len(mesh_of)
        starts, ends, free = [0.0] * count, [0.0] * count, _Links(costs)
        follows = [node > 0 and mesh_of[node - 1] == mesh_of[node] for node in range(count)] + [
            False
        ]
        waits = [
            len(sources) + behind
            for sources, behind in zip(linked.predecessors, follows, strict=False)
        ]
        clock: Clock = FixedClock() if costs.sharing is None else SharedClock(costs.sharing)
        for node in range(count):
            if not waits[node]:
                clock.push(node, mesh_of[node], 0.0, costs.node_seconds[node])
        while (ended := clock.pop()) is not None:
            now, source = ended
            ends[source] = released = now
            for node, edge in readers[source]:
                arrival = free.arrival(source, node, now, edge)
                released = max(released, arrival)
                starts[node] = max(starts[node], arrival)
                waits[node] -= 1
                if not waits[node]:
                    clock.push(node, mesh_of[node], starts[node], costs.node_seconds[node])
            if follows[source + 1]:
                node = source + 1
                starts[node] = max(starts[node], now if costs.overlap else released)
                waits[node] -= 1
                if not waits[node]:
                    clock.push(node, mesh_of[node], starts[node], costs.node_seconds[node])
        return Times(starts, ends, tuple(costs.transfer_seconds), tuple(free.moved))


class _Links:
    """From when on each link is free; a link carries one transfer at a time, first come, first
    served."""

    def __init__(self, costs: NodeCosts) -> None:
        self._seconds, self._links = costs.transfer_seconds, costs.links
        self._free = dict.fromkeys((number for links in costs.links for number in links), 0.0)
        self.moved: list[Moved] = []

    def arrival(self, source: int, node: int, now: float, edge: int) -> float:
        """When what `source` sends at `now` is there."""
        seconds, start = self._seconds[edge], now
        if seconds <= 0:
            return now
        for number in self._links[edge]:
            if self._free[number] > start:
                start = self._free[number]
        end = start + seconds
        for number in self._links[edge]:
            self._free[number] = end
        self.moved.append((source, node, start, end))
        return end


def _longest_send(linked: LinkedSchedule, seconds: Sequence[float]) -> list[float]:
    """For each node how long its transfers take, which all start at once."""
    return [max((seconds[edge] for _, edge in readers), default=0.0) for readers in linked.readers]
