"""Who sends each slice: load balance over NICs and links (arXiv 2211.05322, section 3).

Replicas of a source tile leave a choice. What counts is the busiest link: the NIC of a host,
shared by its devices, or a link inside a host (`link_balance` assigns slices to links). Within the
host that was chosen, the device that has sent least sends."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardopt.cost.transfers import DeviceWays, byte_seconds, has_device_ways
from shardopt.hardware.cluster import Cluster
from shardopt.solve.resharding.link_balance import Link, Option, assign
from shardopt.solve.resharding.plan import Slice

# that hold a slice and are considered; enough for balance, and time does not grow with their number
_MOST_HOSTS = 32


class Fetch(NamedTuple):
    """A slice that device `target` gets from one of its `holders` in the first phase."""

    slice: Slice
    bytes: int
    target: int
    holders: tuple[int, ...]


def choose_senders(cluster: Cluster, fetches: Sequence[Fetch]) -> tuple[int, ...]:
    """The device that sends each slice; the target itself where it holds the slice."""
    wires = _Wires(cluster, fetches)
    hosts_of: dict[tuple[int, ...], dict[int, list[int]]] = {}
    choices: list[tuple[_Choice, ...]] = []
    for fetch in fetches:
        if fetch.holders not in hosts_of:
            hosts_of[fetch.holders] = wires.by_host(fetch.holders)
        choices.append(tuple(wires.choices(fetch, hosts_of[fetch.holders])))
    chosen = assign([tuple(choice.option for choice in each) for each in choices])
    sent: Counter[int] = Counter()
    senders = []
    for fetch, each, option in zip(fetches, choices, chosen, strict=True):
        if option is None:
            senders.append(fetch.target)
            continue
        able = next(choice.senders for choice in each if choice.option is option)
        sender = min(able, key=sent.__getitem__)
        sent[sender] += fetch.bytes
        senders.append(sender)
    return tuple(senders)


def busiest_seconds(cluster: Cluster, fetches: Sequence[Fetch], senders: Sequence[int]) -> float:
    """What is minimised: the seconds of the busiest link."""
    wires = _Wires(cluster, fetches)
    load: defaultdict[Link, float] = defaultdict(float)
    for fetch, sender in zip(fetches, senders, strict=True):
        if sender != fetch.target:
            option = wires.option(fetch, sender)
            for link in option.links:
                load[link] += option.seconds
    return max(load.values(), default=0.0)


class _Choice(NamedTuple):
    """A way to send a slice, and the devices that may send it so."""

    senders: Sequence[int]
    option: Option


class _Wires:
    """The links between devices; the cluster is asked once for each kind of them."""

    def __init__(self, cluster: Cluster, fetches: Sequence[Fetch]) -> None:
        self._cluster = cluster
        self._ways = DeviceWays(cluster, {d for f in fetches for d in (f.target, *f.holders)})
        self._hosts = cluster.hosts_of_devices.tolist()
        self._groups = cluster.groups_of_devices.tolist()
        self._byte_seconds: dict[tuple[int, int, bool], float] = {}

    def by_host(self, devices: Sequence[int]) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for device in devices:
            groups.setdefault(self._hosts[device], []).append(device)
        return groups

    def choices(self, fetch: Fetch, hosts: dict[int, list[int]]) -> Iterator[_Choice]:
        """None at all where the target holds the slice. Of very many hosts those from the target's
        place on are taken, so that different targets turn to different ones."""
        home = self._hosts[fetch.target]
        if fetch.target in hosts.get(home, ()):
            return
        for device in hosts.get(home, ()):
            yield _Choice((device,), self.option(fetch, device))
        others = [host for host in hosts if host != home]
        if len(others) > _MOST_HOSTS:
            first = fetch.target % len(others)
            others = (others[first:] + others[:first])[:_MOST_HOSTS]
        for host in others:
            yield _Choice(hosts[host], self.option(fetch, hosts[host][0]))

    def option(self, fetch: Fetch, sender: int) -> Option:
        target = fetch.target
        hosts = self._hosts[sender], self._hosts[target]
        kind = (self._groups[sender], self._groups[target], hosts[0] == hosts[1])
        if kind[2] and has_device_ways(self._cluster.groups[kind[0]]):
            way = self._ways.of(sender, target)
            return Option(("link", way.out), ("link", way.into), fetch.bytes * way.byte_seconds)
        if kind not in self._byte_seconds:
            self._byte_seconds[kind] = byte_seconds(self._cluster, sender, target)
        seconds = fetch.bytes * self._byte_seconds[kind]
        if kind[2]:
            return Option(("device", sender), ("into device", target), seconds)
        return Option(("NIC", hosts[0]), ("into NIC", hosts[1]), seconds)
