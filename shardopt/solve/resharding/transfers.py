"""Cross-mesh resharding: which device sends which slice of a tensor to which device, and in which
order.

A destination tile overlaps some source tiles, and each overlap is a slice that one holder of the
source tile must send. The strategies (Alpa, arXiv 2201.12023, section 6; arXiv 2211.05322):

* `send_recv`: every destination device gets its whole tile from the source mesh. A tile with n
  replicas crosses n times.
* `local_allgather`: the replicas of a destination tile share the work. The tile is cut finer, each
  piece crosses once, to one replica, and the replicas then gather the pieces, over the hosts first
  and then inside of each. Where the replicas lie on several hosts, those of each host may also do
  so for themselves. (Alpa leaves this case to `send_recv`, with up to as many times the traffic as
  a host has devices.)
* `broadcast`: each overlap crosses once and is handed on in a chain through all replicas, in
  chunks, so that all links of the chain work at once. Here too hosts may have chains of their own.
* `auto`: the cheapest of these under the cluster's cost model.

In all of them the senders are balanced over NICs and links (`senders`), and messages are put in an
order in which hosts do not wait for each other (`message_order`). Tensors that start together are
planned together.

An overlap that the destination device itself holds is a copy inside the device: it stands in the
plan, so that the plan alone says how each tile is filled, but crosses no wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from shardopt.cost.transfers import Links, least_nic_seconds
from shardopt.hardware.cluster import Cluster
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.resharding.message_order import best_order
from shardopt.solve.resharding.plan import ReshardingPlan, TileSend, merged, messages, plans_seconds
from shardopt.solve.resharding.senders import Fetch, choose_senders
from shardopt.solve.resharding.strategies import Draft, Drafting, Resharding
from shardopt.support.errors import UserError
from shardopt.support.suggestions import unknown_name

AUTO = "auto"
_STRATEGIES: Mapping[str, Callable[[Drafting], Iterator[Draft]]] = MappingProxyType(
    {
        "send_recv": Drafting.send_recv,
        "local_allgather": Drafting.local_allgather,
        "broadcast": Drafting.broadcast,
    }
)

_Named = tuple[str, Draft]


def plan_resharding(
    shape: tuple[int, ...],
    itemsize: int,
    source: tuple[Mesh, Sharding],
    destination: tuple[Mesh, Sharding],
    cluster: Cluster,
    strategy: str = AUTO,
) -> ReshardingPlan:
    """Plan how a tensor of `shape` gets from one mesh and sharding to another; see
    `plan_together`."""
    return plan_together((Resharding(shape, itemsize, source, destination),), cluster, strategy)[0]


def plan_together(
    reshardings: Sequence[Resharding], cluster: Cluster, strategy: str = AUTO
) -> tuple[ReshardingPlan, ...]:
    """One plan for each tensor, of tensors that start together.

    `auto` takes the strategy, the same for all or for each the one that is best for it alone, with
    which all are through first; then fewer messages, then the order of the list above. Raises
    UserError for an unknown strategy, ValueError if rank or axes of a sharding do not fit."""
    if strategy not in (AUTO, *_STRATEGIES):
        known = (AUTO, *_STRATEGIES)
        raise UserError(unknown_name("resharding strategy", strategy, known))
    names = (*_STRATEGIES,) if strategy == AUTO else (strategy,)
    planning = _Planning(cluster)
    drafts = [planning.drafts(each, names) for each in reshardings]
    if len(reshardings) == 1:
        return planning.plans(
            reshardings, planning.cheapest(reshardings, [[draft] for draft in drafts[0]])
        )
    alone = [planning.best(each, named) for each, named in zip(reshardings, drafts, strict=True)]
    candidates = [[best[name] for best in alone] for name in dict.fromkeys((*names, AUTO))]
    return planning.plans(reshardings, planning.cheapest(reshardings, candidates))


class _Planning:
    """Drafts become plans here."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nic_seconds = least_nic_seconds(cluster)
        # Fetches of the plans drafted last, and the senders that were found for them.
        self._balanced: tuple[list[Fetch], tuple[int, ...]] = ([], ())

    def drafts(self, resharding: Resharding, names: Sequence[str]) -> list[_Named]:
        """All drafts of all strategies, the same one once."""
        drafting = Drafting(self._cluster, resharding)
        if not drafting.has_replicas:  # then nothing can be passed on, and all strategies are one
            return [(name, draft) for name in names[:1] for draft in drafting.send_recv()]
        return [(name, draft) for name in names for draft in _STRATEGIES[name](drafting)]

    def best(self, resharding: Resharding, drafts: Sequence[_Named]) -> dict[str, _Named]:
        """The best draft of each strategy for one tensor alone, and that of all; a strategy without
        drafts has that one."""
        names = dict.fromkeys(name for name, _ in drafts)
        best_of = {
            n: self.cheapest([resharding], [[draft] for draft in drafts if draft[0] == n])[0]
            for n in names
        }
        best = self.cheapest([resharding], [[draft] for draft in best_of.values()])[0]
        return {name: best_of.get(name, (name, best[1])) for name in _STRATEGIES} | {AUTO: best}

    def cheapest(
        self, reshardings: Sequence[Resharding], candidates: Sequence[list[_Named]]
    ) -> list[_Named]:
        """The candidate (a draft for each tensor) with which all tensors arrive earliest; of
        several the one with the fewest messages, and of those the first.

        Candidates are looked at by a lower bound of their seconds: what hosts must receive. Those
        whose bound exceeds the seconds of another one are left out."""
        if len(candidates) == 1:
            return candidates[0]
        least = [self._least_seconds(candidate) for candidate in candidates]
        best: tuple[float, int, int] | None = None
        for number in sorted(range(len(candidates)), key=least.__getitem__):
            if best is not None and least[number] > best[0]:
                break
            plans = self.plans(reshardings, candidates[number])
            # Ten digits: sums that differ by rounding alone are equal, and messages decide.
            seconds = float(f"{plans_seconds(self._cluster, plans):.9e}")
            cost = (seconds, sum(map(messages, plans)), number)
            best = cost if best is None else min(best, cost)
        assert best is not None
        return candidates[best[2]]

    def _least_seconds(self, candidate: Sequence[_Named]) -> float:
        """Seconds that the busiest receiving NIC needs at best, whoever sends."""
        hosts = self._cluster.hosts_of_devices
        near: dict[tuple[int, ...], frozenset[int]] = {}
        into: Counter[int] = Counter()
        for fetch in (fetch for _, draft in candidate for fetch in draft.fetches):
            if fetch.holders not in near:
                near[fetch.holders] = frozenset(hosts[list(fetch.holders)].tolist())
            home = int(hosts[fetch.target])
            if home not in near[fetch.holders]:
                into[home] += fetch.bytes
        return max(into.values(), default=0) * self._nic_seconds

    def plans(
        self, reshardings: Sequence[Resharding], chosen: Sequence[_Named]
    ) -> tuple[ReshardingPlan, ...]:
        """The drafts with senders, in order."""
        fetches = [fetch for _, draft in chosen for fetch in draft.fetches]
        if fetches != self._balanced[0]:
            self._balanced = fetches, choose_senders(self._cluster, fetches)
        senders = iter(self._balanced[1])
        sends = [
            [TileSend.of(next(senders), fetch.target, fetch.slice) for fetch in draft.fetches]
            for _, draft in chosen
        ]
        rank = self._rank(
            [
                merged(first_sends, each.itemsize)
                for first_sends, each in zip(sends, reshardings, strict=True)
            ]
        )
        plans = []
        for resharding, (name, draft), first_sends in zip(reshardings, chosen, sends, strict=True):
            phases: dict[int, list[TileSend]] = {}
            for phase, send in draft.rounds:
                phases.setdefault(phase, []).append(send)
            first = tuple(
                sorted(
                    first_sends, key=lambda send: rank.get((send.src_device, send.dst_device), -1)
                )
            )
            later = (tuple(phases.get(phase, ())) for phase in range(1, 1 + max(phases, default=0)))
            ordered = (first, *later) if first else ()
            plans.append(ReshardingPlan(name, len(resharding.shape), resharding.itemsize, ordered))
        return tuple(plans)

    def _rank(self, parts: Sequence[Sequence[tuple[int, int, int]]]) -> dict[tuple[int, int], int]:
        """The place of each pair of devices in the order in which messages are best sent."""
        sizes: dict[tuple[int, int], int] = {}
        for source, target, size in (message for part in parts for message in part):
            sizes[source, target] = sizes.get((source, target), 0) + size
        pairs = [*sizes]
        order = best_order(Links.of(self._cluster, [(*pair, sizes[pair]) for pair in pairs]))
        return {pairs[number]: place for place, number in enumerate(order)}
