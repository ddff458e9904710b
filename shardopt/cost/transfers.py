"""Time of point-to-point messages: what a cross-mesh resharding costs.

Inside a host every device has a link of its own, or links to some of the others (`device_links`),
over which a message goes as `shardopt.hardware.link_routes` says; between hosts the messages of a
host share its NIC, each direction for itself, whether they go to a host of the same group or of
another, and those inside a group share its fabric where it is narrower than the NICs. Copies inside
a device cost nothing. Where sending was measured for as many senders at once, that tells what a
load takes.

There are two figures for messages that start together. `messages_seconds` is what the busiest link
needs: less is not possible, and it is what an estimate is made with as long as nobody has said who
sends what. `Ordered` sends messages in the order in which they are given, one at a time over each
link: what the costs of a plan are. In a good order (`shardopt.solve.resharding.message_order`) the
two agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from shardopt.hardware.cluster import Cluster, HostGroup
from shardopt.hardware.curves import Curve
from shardopt.hardware.link_routes import route
from shardopt.hardware.profile import INTER_HOST, INTRA_HOST, SEND

Message = tuple[int, int, int]  # source device, destination device, bytes


def messages_seconds(cluster: Cluster, messages: Iterable[Message]) -> float:
    """Seconds until all messages have arrived: the busiest link decides, and the longest latency
    counts once."""
    return Links.of(cluster, messages).busiest_seconds


def even_messages(source: Sequence[int], target: Sequence[int], size: int) -> list[Message]:
    """A value of so many bytes spread evenly over two meshes: less cannot cross, and how it really
    lies is decided by the shard phase."""
    count = min(len(source), len(target))
    pairs = (
        (source[k * len(source) // count], target[k * len(target) // count]) for k in range(count)
    )
    return [(a, b, -(-size // count)) for a, b in pairs]


def phases_seconds(cluster: Cluster, phases: Iterable[Sequence[Message]]) -> float:
    """Seconds of phases, each of which starts when the one before has arrived; in the order given
    within each."""
    return sum(Ordered(Links.of(cluster, phase)).seconds for phase in phases)


def streamed_seconds(cluster: Cluster, phases: Sequence[Sequence[Message]], turn: int) -> float:
    """Seconds of phases of which those before `turn` run together: what arrives in the first is
    passed on meanwhile, until the last of it has come. The busiest link of these decides, or, of
    small messages, the latency of all phases, as a device begins one after the other; the others
    follow, each when the one before has arrived."""
    together = [message for phase in phases[:turn] for message in phase]
    first = Ordered(Links.of(cluster, phases[0])).seconds
    busiest = Links.of(cluster, together).busiest_seconds
    begun = sum(Links.of(cluster, phase).latency for phase in phases[:turn])
    return max(first, busiest, begun) + phases_seconds(cluster, phases[turn:])


def byte_seconds(cluster: Cluster, source: int, target: int) -> float:
    """Seconds for each byte of a large message that is alone on its links; inside a host on those
    of its devices, if a switch joins them."""
    groups = cluster.group_index(source), cluster.group_index(target)
    return _link_curve(
        cluster, *groups, cluster.host_of(source) == cluster.host_of(target), 1
    ).slopes[-1]


def least_nic_seconds(cluster: Cluster) -> float:
    """Seconds for each byte through the fastest NIC; 0 where sending was measured, which
    may be any curve."""
    if any(group.device.profile is not None for group in cluster.groups):
        return 0.0
    groups = range(len(cluster.groups))
    nics = [group.inter_host for group in cluster.groups]
    links = [*nics, *(cluster.link_between(a, b) for a in groups for b in groups if a < b)]
    return 1 / max(link.bandwidth_bytes_per_second for link in links)


class Way(NamedTuple):
    """Of a message: the links that it leaves and arrives through, with the numbers that they have
    in `Links`, and the seconds of a byte that is alone on them."""

    out: int
    into: int
    byte_seconds: float


def has_device_ways(group: HostGroup) -> bool:
    """Whether messages inside its hosts go over links between two devices each; where sending was
    measured, that tells what they take."""
    return group.device_links is not None and group.device.profile is None


class DeviceWays:
    """Ways between devices of one host that have links of their own (`has_device_ways`), where
    `members`, devices of any hosts, pass on the messages of others. Where no links lead, messages
    go over the memory of the host."""

    def __init__(self, cluster: Cluster, members: Iterable[int]) -> None:
        self._cluster = cluster
        self._hosts = cluster.hosts_of_devices
        self._first_link = 2 * (int(self._hosts[-1]) + 1 + len(self._hosts))
        self._most = max(group.devices_per_host for group in cluster.groups)
        self._members: defaultdict[int, list[int]] = defaultdict(list)
        for member in sorted(members):
            self._members[int(self._hosts[member])].append(member)
        self._known: dict[tuple[int, int], Way] = {}

    def of(self, source: int, target: int) -> Way:
        if (source, target) not in self._known:
            self._known[source, target] = self._way(source, target)
        return self._known[source, target]

    def _way(self, source: int, target: int) -> Way:
        number = self._cluster.group_index(source)
        group, first = self._cluster.groups[number], self._cluster.first_devices[number]
        begin = source - (source - first) % group.devices_per_host
        links = group.device_links or ()
        members = tuple(member - begin for member in self._members[int(self._hosts[source])])
        hops = route(links, members, source - begin, target - begin)
        if not hops:
            nics = int(self._hosts[-1]) + 1
            seconds = 1 / group.over_host_rate
            return Way(2 * nics + source, 2 * nics + len(self._hosts) + target, seconds)
        out, into = (
            self._first_link + (begin + a) * self._most + b for a, b in (hops[0], hops[-1])
        )
        return Way(out, into, 1 / (min(links[a][b] for a, b in hops) * group.link_rate))


@dataclass(frozen=True, eq=False)
class Links:
    """Messages between different devices, by the links that they use.

    `numbers` are their places in the list given; `out` and `into` the links that they leave and
    arrive through, which may be one, each in one direction and with a number of its own: NICs of
    hosts, links of devices, then links between two devices; `seconds` how long one occupies its
    links; `shared` the seconds that a group's fabric needs for all of them."""

    numbers: np.ndarray
    out: np.ndarray
    into: np.ndarray
    seconds: np.ndarray
    latency: float
    shared: float

    @staticmethod
    def of(cluster: Cluster, messages: Iterable[Message]) -> Links:
        rows = np.array([*messages], dtype=np.int64).reshape(-1, 3)
        numbers = np.flatnonzero(rows[:, 0] != rows[:, 1])
        source, target, size = rows[numbers].T
        hosts, groups = cluster.hosts_of_devices, cluster.groups_of_devices
        inside = hosts[source] == hosts[target]
        nics, devices = int(hosts[-1]) + 1, len(hosts)
        out = np.where(inside, 2 * nics + source, hosts[source])
        into = np.where(inside, 2 * nics + devices + target, nics + hosts[target])
        kind = (groups[source] * len(cluster.groups) + groups[target]) * 2 + inside
        seconds, latency, shared = np.zeros(len(size)), 0.0, 0.0
        for each in np.unique(kind).tolist():
            of_kind = kind == each
            first, second = divmod(each // 2, len(cluster.groups))
            if each % 2 and has_device_ways(cluster.groups[first]):
                pairs = [*zip(source[of_kind].tolist(), target[of_kind].tolist(), strict=True)]
                ways = DeviceWays(cluster, {device for pair in pairs for device in pair})
                taken = [ways.of(*pair) for pair in pairs]
                out[of_kind], into[of_kind], rates = zip(*taken, strict=True)
                seconds[of_kind] = size[of_kind] * rates
                latency = max(latency, cluster.groups[first].intra_host.latency_seconds)
                continue
            curve = _link_curve(
                cluster, first, second, bool(each % 2), len(np.unique(out[of_kind]))
            )
            latency = max(latency, curve.at(0.0))
            seconds[of_kind] = np.maximum(
                *(_shares(curve, link[of_kind], size[of_kind]) for link in (out, into))
            )
            fabric = cluster.groups[first].fabric_bandwidth
            if first == second and not each % 2 and fabric is not None:
                shared = max(shared, float(size[of_kind].sum()) / fabric)
        return Links(numbers, out, into, seconds, latency, shared)

    def reordered(self, order: Sequence[int]) -> Links:
        """The same messages in another order."""
        at = np.array(order, dtype=np.int64)
        fields = (self.numbers[at], self.out[at], self.into[at], self.seconds[at])
        return Links(*fields, self.latency, self.shared)

    @cached_property
    def busiest_seconds(self) -> float:
        if not len(self.seconds):
            return 0.0
        second = self.into != self.out
        busy = np.bincount(
            np.append(self.out, self.into[second]), np.append(self.seconds, self.seconds[second])
        )
        return self.latency + max(float(busy.max()), self.shared)


@dataclass(frozen=True, eq=False)
class Ordered:
    """Messages sent one after another over each link, a message as soon as both its links have done
    those before it."""

    links: Links

    @cached_property
    def starts(self) -> np.ndarray:
        """Seconds, for each message of `links`."""
        links = self.links
        starts = np.zeros(len(links.seconds))
        used = np.append(links.out, links.into[links.into != links.out])
        if len(np.unique(used)) == len(used):
            return starts  # no link has two
        free: dict[int, float] = {}
        rows = zip(links.out.tolist(), links.into.tolist(), links.seconds.tolist(), strict=True)
        for number, (out, into, seconds) in enumerate(rows):
            starts[number] = start = max(free.get(out, 0.0), free.get(into, 0.0))
            free[out] = free[into] = start + seconds
        return starts

    @property
    def seconds(self) -> float:
        if not len(self.links.seconds):
            return 0.0
        return self.links.latency + max(
            float((self.starts + self.links.seconds).max()), self.links.shared
        )


def _shares(curve: Curve, link: np.ndarray, size: np.ndarray) -> np.ndarray:
    """What of the seconds of a link falls to each message: as much as it has of the link's
    bytes."""
    load = np.bincount(link, size)
    busy = (curve.at(load) - curve.at(0.0)) / np.maximum(load, 1.0)
    return busy[link] * size


def _link_curve(cluster: Cluster, first: int, second: int, inside: bool, senders: int) -> Curve:
    """Seconds by the bytes of the busiest link, inside a host, between hosts of a group, or between
    two groups."""
    group = cluster.groups[first]
    link = (
        cluster.link_between(first, second)
        if first != second
        else group.intra_host
        if inside
        else group.inter_host
    )
    profile = group.device.profile if first == second else None
    measured = (
        profile.nearest(SEND, senders, INTRA_HOST if inside else INTER_HOST) if profile else None
    )
    return measured or Curve.affine(link.latency_seconds, 1 / link.bandwidth_bytes_per_second)
