"""Who sends each box: load balance over network cards and links (arXiv 2211.05322, section 3.2).

Replicas of a source tile leave a choice. What counts is the busiest link: the card of a host, shared by its devices, or
the link of a device inside its host. First each box, largest first, goes where it makes the busiest of its links least
busy; then boxes on the busiest link of all are moved or exchanged as long as that relieves it; and where few boxes have
a choice, branch and bound finds the best assignment. Each step has a budget of work, so the result does not depend on
the machine. Within the host that was chosen, the device that has sent least sends.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from shardopt.cost.cluster import Cluster
from shardopt.cost.transfers import byte_seconds
from shardopt.solve.resharding.plan import Box

_MOST_HOSTS = 32  # that hold a box and are considered; enough for balance, and time does not grow with their number
_MOST_MOVES = 20_000  # looked at by local search
_MOST_NODES = 20_000  # of the search tree
_MOST_SEARCHED = 16  # boxes with a choice; more would exhaust the budget without a proof
_EPSILON = 1e-9  # relative: less is not an improvement

_Link = tuple[str, int]
Changes = tuple[tuple[int, "_Option"], ...]  # boxes and how they are sent instead


class Fetch(NamedTuple):
    """A box that device `target` gets from one of its `holders` in the first phase."""

    box: Box
    bytes: int
    target: int
    holders: tuple[int, ...]


class _Option(NamedTuple):
    """A way to send a box: the links that it occupies, and how long."""

    out: _Link
    into: _Link
    seconds: float


def choose_senders(cluster: Cluster, fetches: Sequence[Fetch]) -> tuple[int, ...]:
    """The device that sends each box; the target itself where it holds the box."""
    wires = _Wires(cluster)
    hosts_of: dict[tuple[int, ...], dict[int, list[int]]] = {}
    options: list[tuple[_Option, ...]] = []
    for fetch in fetches:
        if fetch.holders not in hosts_of:
            hosts_of[fetch.holders] = wires.by_host(fetch.holders)
        options.append(tuple(wires.options(fetch, hosts_of[fetch.holders])))
    chosen = _assign(options)
    sent: Counter[int] = Counter()
    senders = []
    for fetch, option in zip(fetches, chosen, strict=True):
        if option is None:
            senders.append(fetch.target)
            continue
        kind, number = option.out
        able = hosts_of[fetch.holders][number] if kind == "card" else [number]
        sender = min(able, key=sent.__getitem__)
        sent[sender] += fetch.bytes
        senders.append(sender)
    return tuple(senders)


def busiest_seconds(cluster: Cluster, fetches: Sequence[Fetch], senders: Sequence[int]) -> float:
    """What is minimised: the seconds of the busiest link."""
    wires = _Wires(cluster)
    load: defaultdict[_Link, float] = defaultdict(float)
    for fetch, sender in zip(fetches, senders, strict=True):
        if sender != fetch.target:
            option = wires.option(fetch, sender)
            load[option.out] += option.seconds
            load[option.into] += option.seconds
    return max(load.values(), default=0.0)


class _Wires:
    """The links between devices; the cluster is asked once for each kind of them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._hosts, self._groups = cluster.hosts_of_devices.tolist(), cluster.groups_of_devices.tolist()
        self._byte_seconds: dict[tuple[int, int, bool], float] = {}

    def by_host(self, devices: Sequence[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for device in devices:
            found.setdefault(self._hosts[device], []).append(device)
        return found

    def options(self, fetch: Fetch, hosts: dict[int, list[int]]) -> Iterator[_Option]:
        """None at all where the target holds the box. Of very many hosts those from the target's place on are taken,
        so that different targets turn to different ones."""
        home = self._hosts[fetch.target]
        if fetch.target in hosts.get(home, ()):
            return
        for device in hosts.get(home, ()):
            yield self.option(fetch, device)
        others = [host for host in hosts if host != home]
        if len(others) > _MOST_HOSTS:
            first = fetch.target % len(others)
            others = (others[first:] + others[:first])[:_MOST_HOSTS]
        for host in others:
            yield self.option(fetch, hosts[host][0])

    def option(self, fetch: Fetch, sender: int) -> _Option:
        target = fetch.target
        hosts = self._hosts[sender], self._hosts[target]
        kind = (self._groups[sender], self._groups[target], hosts[0] == hosts[1])
        if kind not in self._byte_seconds:
            self._byte_seconds[kind] = byte_seconds(self._cluster, sender, target)
        seconds = fetch.bytes * self._byte_seconds[kind]
        if kind[2]:
            return _Option(("device", sender), ("into device", target), seconds)
        return _Option(("card", hosts[0]), ("into card", hosts[1]), seconds)


# ---- the assignment ----


class _Loads:
    """Seconds of each link under an assignment; `None` stands for boxes that need no sender."""

    def __init__(self, options: Sequence[tuple[_Option, ...]]) -> None:
        self.seconds: defaultdict[_Link, float] = defaultdict(float)
        self.chosen: list[_Option | None] = [None] * len(options)

    def put(self, fetch: int, option: _Option) -> None:
        self.seconds[option.out] += option.seconds
        self.seconds[option.into] += option.seconds
        self.chosen[fetch] = option

    def with_option(self, option: _Option) -> float:
        """The busier of its links, with it."""
        return max(self.seconds[option.out], self.seconds[option.into]) + option.seconds

    def top(self) -> float:
        return max(self.seconds.values(), default=0.0)

    def relieves(self, worst: _Link, limit: float, changes: Sequence[tuple[_Option, _Option]]) -> bool:
        """Whether replacing options takes something off the worst link and brings no other one to the limit."""
        delta: defaultdict[_Link, float] = defaultdict(float)
        for old, new in changes:
            for option, sign in ((old, -1), (new, 1)):
                delta[option.out] += sign * option.seconds
                delta[option.into] += sign * option.seconds
        return delta[worst] < 0 and all(
            more <= 0 or self.seconds[link] + more < limit for link, more in delta.items() if link != worst
        )

    def replace(self, fetch: int, new: _Option) -> None:
        old = _sure(self.chosen[fetch])
        self.seconds[old.out] -= old.seconds
        self.seconds[old.into] -= old.seconds
        self.put(fetch, new)


def _assign(options: Sequence[tuple[_Option, ...]]) -> list[_Option | None]:
    loads = _Loads(options)
    open_: list[int] = []
    for fetch, own in enumerate(options):
        if len(own) == 1:
            loads.put(fetch, own[0])
        elif own:
            open_.append(fetch)
    open_.sort(key=lambda fetch: -min(option.seconds for option in options[fetch]))
    least = _bound(loads, [options[fetch] for fetch in open_])
    for fetch in open_:
        loads.put(fetch, min(options[fetch], key=lambda option: (loads.with_option(option), loads.seconds[option.out])))
    if loads.top() > least * (1 + _EPSILON):
        _improve(loads, options, open_)
    if len(open_) <= _MOST_SEARCHED and loads.top() > least * (1 + _EPSILON):
        return _Search(loads, options, open_, least).run()
    return loads.chosen


def _bound(fixed: _Loads, options: Sequence[tuple[_Option, ...]]) -> float:
    """Seconds that no assignment of the boxes with a choice undercuts: what stands, the largest box, and all of them
    spread evenly over the links that could send them."""
    least = max(fixed.top(), max((min(o.seconds for o in own) for own in options), default=0.0))
    links = {option.out for own in options for option in own}
    total = sum(min(option.seconds for option in own) for own in options) + sum(fixed.seconds[link] for link in links)
    return max(least, total / max(len(links), 1))


def _improve(loads: _Loads, options: Sequence[tuple[_Option, ...]], open_: Sequence[int]) -> None:
    """Relieve the busiest link by moving one of its boxes, or by exchanging one with a box elsewhere."""
    left = _MOST_MOVES
    while left > 0:
        top = loads.top()
        worst = next(link for link, seconds in loads.seconds.items() if seconds == top)
        on_it = [fetch for fetch in open_ if (own := loads.chosen[fetch]) and worst in (own.out, own.into)]
        found: Changes = ()
        for changes in chain(_moves(loads, options, on_it), _exchanges(loads, options, on_it, open_)):
            left -= 1
            replaced = [(_sure(loads.chosen[fetch]), new) for fetch, new in changes]
            if loads.relieves(worst, top * (1 - _EPSILON), replaced):
                found = changes
                break
            if left <= 0:
                break
        if not found:
            return
        for fetch, option in found:
            loads.replace(fetch, option)


def _moves(loads: _Loads, options: Sequence[tuple[_Option, ...]], on_it: Sequence[int]) -> Iterator[Changes]:
    for fetch in on_it:
        yield from (((fetch, new),) for new in options[fetch] if new is not loads.chosen[fetch])


def _exchanges(
    loads: _Loads, options: Sequence[tuple[_Option, ...]], on_it: Sequence[int], open_: Sequence[int]
) -> Iterator[Changes]:
    for fetch in on_it:
        out = _sure(loads.chosen[fetch]).out
        for other in open_:
            theirs = _sure(loads.chosen[other]).out
            new = next((option for option in options[fetch] if option.out == theirs), None)
            back = next((option for option in options[other] if option.out == out), None)
            if out != theirs and new is not None and back is not None:
                yield ((fetch, new), (other, back))


def _sure(option: _Option | None) -> _Option:
    assert option is not None
    return option


class _Search:
    """Depth first over the boxes with a choice, largest first; prunes what cannot beat the best."""

    def __init__(
        self, start: _Loads, options: Sequence[tuple[_Option, ...]], open_: Sequence[int], least: float
    ) -> None:
        self.options, self.open, self.least = options, open_, least
        self.best, self.best_top = list(start.chosen), start.top()
        self.loads = _Loads(options)
        for fetch, own in enumerate(options):
            if len(own) == 1:
                self.loads.put(fetch, own[0])
        self.nodes = 0

    def run(self) -> list[_Option | None]:
        self._visit(0, self.loads.top())
        return self.best

    def _visit(self, depth: int, top: float) -> None:
        if depth == len(self.open):
            self.best, self.best_top = list(self.loads.chosen), top
            return
        fetch = self.open[depth]
        ways = sorted((max(top, self.loads.with_option(o)), number) for number, o in enumerate(self.options[fetch]))
        for reached, number in ways:
            self.nodes += 1
            done = self.best_top <= self.least * (1 + _EPSILON) or self.nodes > _MOST_NODES
            if done or reached >= self.best_top * (1 - _EPSILON):
                return
            option = self.options[fetch][number]
            before = self.loads.seconds[option.out], self.loads.seconds[option.into]
            self.loads.put(fetch, option)
            self._visit(depth + 1, reached)
            self.loads.seconds[option.out], self.loads.seconds[option.into] = before
