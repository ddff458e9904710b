"""The plan of a cross-mesh resharding as a value, what it moves, and its form as one integer array.

In the first phase of a plan source devices send slices of their tiles to destination devices; in
each later one destination devices pass on slices that arrived in phases before. Afterwards each
destination device holds its whole tile and has received every element of it exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np

from shardopt.cost.transfers import Message, phases_seconds, streamed_seconds
from shardopt.hardware.cluster import Cluster

_HEADER_COLUMNS = 3  # phase, source device, destination device

Slice = tuple[tuple[int, int], ...]  # (start, limit) of each dimension


@dataclass(frozen=True, slots=True)
class TileSend:
    """One message: the slice `[start, limit)` of the whole tensor, in elements per dimension,
    between global device ids.

    Equal devices mean a copy inside the device.
    """

    src_device: int
    dst_device: int
    start: tuple[int, ...]
    limit: tuple[int, ...]

    @staticmethod
    def of(src_device: int, dst_device: int, slice_: Slice) -> TileSend:
        return TileSend(
            src_device,
            dst_device,
            tuple(start for start, _ in slice_),
            tuple(limit for _, limit in slice_),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(limit - start for start, limit in zip(self.start, self.limit, strict=True))

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def is_local(self) -> bool:
        return self.src_device == self.dst_device

    def __str__(self) -> str:
        text = ", ".join(
            f"{start}:{limit}" for start, limit in zip(self.start, self.limit, strict=True)
        )
        return f"{self.src_device}->{self.dst_device} [{text}]"


@dataclass(frozen=True)
class ReshardingPlan:
    """`phases[0]` are the sends from source to destination mesh, `phases[p]` those inside the
    destination in phase p.

    The order within a phase is the one in which messages are best sent. `itemsize` is bytes per
    element."""

    strategy: str
    rank: int
    itemsize: int
    phases: tuple[tuple[TileSend, ...], ...]

    @property
    def sends(self) -> tuple[TileSend, ...]:
        return self.phases[0] if self.phases else ()

    @property
    def passed_on(self) -> tuple[TileSend, ...]:
        """All phases inside the destination."""
        return tuple(send for phase in self.phases[1:] for send in phase)

    def messages(self, phase: int) -> list[Message]:
        """What one device sends another in a phase, as one message of so many bytes; none in phases
        that the plan does not have."""
        return merged(self.phases[phase], self.itemsize) if phase < len(self.phases) else []

    def to_array(self) -> np.ndarray:
        """The messages as int64 `[messages, 3 + 2 * rank]`: phase, src, dst, starts, limits."""
        rows = [
            (phase, send.src_device, send.dst_device, *send.start, *send.limit)
            for phase, sends in enumerate(self.phases)
            for send in sends
        ]
        return np.array(rows, dtype=np.int64).reshape(len(rows), _HEADER_COLUMNS + 2 * self.rank)

    @staticmethod
    def from_array(array: np.ndarray, strategy: str, itemsize: int) -> ReshardingPlan:
        """The inverse of `to_array`; raises ValueError for an array that is no plan."""
        columns = array.shape[1] if array.ndim == 2 else 0
        if (
            columns < _HEADER_COLUMNS
            or (columns - _HEADER_COLUMNS) % 2
            or array.dtype.kind not in "iu"
        ):
            raise ValueError(
                "a resharding plan is an integer array [n, 3 + 2 * rank], found "
                f"{array.dtype}{array.shape}"
            )
        rank = (columns - _HEADER_COLUMNS) // 2
        phases: dict[int, list[TileSend]] = {}
        for phase, src, dst, *slice_ in array.tolist():
            phases.setdefault(phase, []).append(
                TileSend(src, dst, tuple(slice_[:rank]), tuple(slice_[rank:]))
            )
        if min(phases, default=0) < 0:
            raise ValueError(f"resharding plan: expected phases from 0 on, found {min(phases)}")
        ordered = (tuple(phases.get(phase, ())) for phase in range(1 + max(phases, default=-1)))
        return ReshardingPlan(strategy, rank, itemsize, tuple(ordered))


def merged(sends: Iterable[TileSend], itemsize: int) -> list[Message]:
    """One message for each pair of different devices, in the order of their first sends."""
    sizes: Counter[tuple[int, int]] = Counter()
    for send in sends:
        if not send.is_local:
            sizes[send.src_device, send.dst_device] += send.elements * itemsize
    return [(*pair, size) for pair, size in sizes.items()]


def plans_seconds(cluster: Cluster, plans: Iterable[ReshardingPlan]) -> float:
    """Seconds until plans that start together are through, phase by phase: what they send on one
    route in one phase is one message. A single plan whose hosts pass slices on to each other does
    so while others are still coming in."""
    plans = tuple(plans)
    if len(plans) == 1 and (turn := _last_begun(cluster, plans[0])) > 1:
        (plan,) = plans
        messages_of = [plan.messages(phase) for phase in range(len(plan.phases))]
        return streamed_seconds(cluster, messages_of, turn)
    count = max((len(plan.phases) for plan in plans), default=0)
    phases = (_joined([plan.messages(phase) for plan in plans]) for phase in range(count))
    return phases_seconds(cluster, phases)


def _last_begun(cluster: Cluster, plan: ReshardingPlan) -> int:
    """The first phase at which all that came from the source has begun to be passed on: in those
    before, the rest of it may still be coming in. 1 where nothing is gained: no slice leaves a
    host, all leave at once, or one is for several devices of a host and waits to be copied."""
    hosts = cluster.hosts_of_devices
    if not any(hosts[send.src_device] != hosts[send.dst_device] for send in plan.passed_on):
        return 1
    fetched: dict[int, list[TileSend]] = {}
    places: set[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = set()
    for send in plan.sends:
        fetched.setdefault(send.dst_device, []).append(send)
        places.add((send.src_device, int(hosts[send.dst_device]), send.start, send.limit))
    if len(places) < len(plan.sends):
        return 1
    begun: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int] = {}
    for phase, sends in enumerate(plan.phases[1:], 1):
        for send in sends:
            if any(_meet(send, other) for other in fetched.get(send.src_device, ())):
                begun.setdefault((send.src_device, send.start, send.limit), phase)
    return max(begun.values(), default=1)


def _meet(one: TileSend, other: TileSend) -> bool:
    return all(
        max(starts) < min(limits)
        for starts, limits in zip(
            zip(one.start, other.start, strict=True),
            zip(one.limit, other.limit, strict=True),
            strict=True,
        )
    )


def _joined(parts: list[list[Message]]) -> list[Message]:
    if len(parts) == 1:
        return parts[0]
    sizes: Counter[tuple[int, int]] = Counter()
    for source, target, size in (message for part in parts for message in part):
        sizes[source, target] += size
    return [(*pair, size) for pair, size in sizes.items()]


def elements_on_wire(plan: ReshardingPlan) -> int:
    """Elements that the sends move between different devices; copies inside a device and later
    phases do not count."""
    return _moved_elements(plan.sends)


def elements_passed_on(plan: ReshardingPlan) -> int:
    """Elements that destination devices pass to each other after the first phase."""
    return _moved_elements(plan.passed_on)


def bytes_on_wire(plan: ReshardingPlan) -> int:
    return elements_on_wire(plan) * plan.itemsize


def messages(plan: ReshardingPlan) -> int:
    """Number of sends between different devices."""
    return sum(not send.is_local for send in plan.sends)


def elements_by_nic(plan: ReshardingPlan, cluster: Cluster) -> dict[int, tuple[int, int]]:
    """Elements that each host sends to other hosts and receives from them, in all phases."""
    by_host: dict[int, tuple[int, int]] = {}
    for send in (send for phase in plan.phases for send in phase):
        ends = cluster.host_of(send.src_device), cluster.host_of(send.dst_device)
        if ends[0] != ends[1]:
            for host, moved in ((ends[0], (send.elements, 0)), (ends[1], (0, send.elements))):
                out, into = by_host.get(host, (0, 0))
                by_host[host] = (out + moved[0], into + moved[1])
    return dict(sorted(by_host.items()))


def _moved_elements(sends: Iterable[TileSend]) -> int:
    return sum(send.elements for send in sends if not send.is_local)
