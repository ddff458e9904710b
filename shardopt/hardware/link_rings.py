"""Rings over devices of a host that are joined by links of their own, without a switch.

    0 = 3        0 - 1 - 3 = 2 (1)       A ring over all members uses one link between neighbours in
    |\\ / |                               one direction; what the members move together is as many
    1 = 2        0 = 3 - 1 ...           rings as fit into the links at once.

The hybrid cube mesh of eight V100 has six links a device, but they lead to four of the others: all
six serve a ring over all eight, one a ring over two. Where links join no ring, neighbours may pass
through a third member (`link_routes`): so NCCL looks for them (`ncclTopoCompute` in its
`src/graph/search.cc`), and two rings are over the first five."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import pairwise, permutations

from shardopt.hardware.link_routes import Hop, Links, route

# 5,040 rings; hosts of more devices have switches.
_MOST_SEARCHED = 8
# Sets of rings that are looked at; the cube mesh of eight needs 7.
_MOST_SETS = 20_000


@lru_cache(maxsize=1024)
def rings(links: Links, members: tuple[int, ...]) -> int:
    """The most directed rings over all `members` at once, where `links[a][b]` join two devices and
    carry one ring in each direction each; 0 where no links lead around. Of more than eight members,
    what the links of the worst connected one allow."""
    capacity = {(a, b): links[a][b] for a in members for b in members if a != b}
    most = min(sum(links[a][b] for b in members if b != a) for a in members)
    if len(members) > _MOST_SEARCHED:
        return most
    cycles = _cycles(links, members)
    direct = tuple(cycle for cycle in cycles if sum(cycle.values()) == len(members))
    return _packed(direct or cycles, capacity, most)


def _cycles(links: Links, members: tuple[int, ...]) -> tuple[Counter[Hop], ...]:
    """Every ring that the links allow, as how often it takes each of them."""
    first, *others = members
    cycles = []
    for order in permutations(others):
        ways = [route(links, members, *pair) for pair in pairwise((first, *order, first))]
        if all(ways):
            cycles.append(Counter(hop for hops in ways for hop in hops))
    return tuple(cycles)


def _packed(cycles: tuple[Counter[Hop], ...], capacity: dict[Hop, int], most: int) -> int:
    """How many of the rings fit at once, by the sets that are looked at; one may be taken as often
    as its links allow."""
    used: Counter[Hop] = Counter()
    best = sets = 0

    def place(start: int, count: int) -> None:
        nonlocal best, sets
        best, sets = max(best, count), sets + 1
        for number in range(start, len(cycles)):
            if best == most or sets > _MOST_SETS:
                return
            hops = cycles[number]
            if all(used[hop] + times <= capacity[hop] for hop, times in hops.items()):
                used.update(hops)
                place(number, count + 1)
                used.subtract(hops)

    place(0, 0)
    return best
