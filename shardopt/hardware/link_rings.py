"""Rings over devices of a host that are joined by links of their own, without a switch.

    0 = 3        0 - 1 - 3 = 2 (1)       A ring over all members uses one link between neighbours in
    |\\ / |                               one direction; what the members move together is as many
    1 = 2        0 = 3 - 1 ...           rings as fit into the links at once.

The hybrid cube mesh of eight V100 has six links a device, but they lead to four of the others: all
six serve a ring over all eight, one a ring over two."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import pairwise, permutations

Links = tuple[tuple[int, ...], ...]
_Hop = tuple[int, int]
# 5,040 rings; hosts of more devices have switches.
_MOST_SEARCHED = 8


@lru_cache(maxsize=1024)
def rings(links: Links, members: tuple[int, ...]) -> int:
    """The most directed rings over all `members` at once, where `links[a][b]` join two devices and
    carry one ring in each direction each; at least 1, as NCCL goes through others where none fits.
    Of more than eight members, what the links of the worst connected one allow."""
    capacity = {(a, b): links[a][b] for a in members for b in members if a != b}
    most = min(sum(links[a][b] for b in members if b != a) for a in members)
    if len(members) > _MOST_SEARCHED:
        return max(1, most)
    return max(1, _packed(_cycles(members, capacity), capacity, most))


def _cycles(members: tuple[int, ...], capacity: dict[_Hop, int]) -> tuple[tuple[_Hop, ...], ...]:
    """Every ring that the links allow, as its hops."""
    first, *others = members
    cycles = []
    for order in permutations(others):
        hops = tuple(pairwise((first, *order, first)))
        if all(capacity[hop] for hop in hops):
            cycles.append(hops)
    return tuple(cycles)


def _packed(cycles: tuple[tuple[_Hop, ...], ...], capacity: dict[_Hop, int], most: int) -> int:
    """How many of the rings fit at once; one may be taken as often as its links allow."""
    used: Counter[_Hop] = Counter()
    best = 0

    def place(start: int, count: int) -> None:
        nonlocal best
        best = max(best, count)
        for number in range(start, len(cycles)):
            if best == most:
                return
            hops = cycles[number]
            if all(used[hop] < capacity[hop] for hop in hops):
                used.update(hops)
                place(number, count + 1)
                used.subtract(hops)

    place(0, 0)
    return best
