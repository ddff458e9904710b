"""Ways of messages between devices of a host that are joined by links of their own, without a
switch.

    0 = 3        1 to 2: their link         A message takes the link between its ends; where none
    |   |        0 to 2: over 1, or over    joins them it goes through a third member, over which
    1 - 2            3, which is wider      the narrower of two hops is widest, and where no member
                                            joins them through the memory of the host.

So NCCL does for point-to-point messages, of which its all-to-alls are made (`ncclTopoSetPaths` and
`ncclTopoCheckP2p` in `src/graph/paths.cc` of https://github.com/NVIDIA/nccl; through a third GPU
since its version 2.8.3, for DGX-1). Only GPUs of the communicator pass messages on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

Links = tuple[tuple[int, ...], ...]
Hop = tuple[int, int]


@lru_cache(maxsize=4096)
def route(links: Links, members: tuple[int, ...], source: int, target: int) -> tuple[Hop, ...]:
    """The links that a message takes, one or two; none where it goes through the host."""
    if links[source][target]:
        return ((source, target),)
    thirds = [third for third in members if links[source][third] and links[third][target]]
    if not thirds:
        return ()
    # Of equally wide ones the first: `max` keeps it.
    by = max(thirds, key=lambda third: min(links[source][third], links[third][target]))
    return ((source, by), (by, target))


def seconds_together(
    links: Links,
    members: tuple[int, ...],
    messages: Iterable[Hop],
    link_rate: float,
    host_rate: float,
) -> float:
    """Seconds for a byte of each message, (source, target), all at once: of the busiest link of
    `link_rate` bytes/s, or way between a device and the memory of its host of `host_rate`, each in
    one direction."""
    on_links: Counter[Hop] = Counter()
    on_hosts: Counter[tuple[str, int]] = Counter()
    for source, target in messages:
        hops = route(links, members, source, target)
        on_links.update(hops)
        if not hops:
            on_hosts.update((("out", source), ("into", target)))
    return max(
        *(count / (links[a][b] * link_rate) for (a, b), count in on_links.items()),
        *(count / host_rate for count in on_hosts.values()),
        0.0,
        0.0,
    )
