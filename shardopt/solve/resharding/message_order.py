"""The order of messages, so that hosts that have nothing to do with each other send at once.

Each link carries one message at a time. This is open-shop scheduling: a message needs the link that
it leaves through and the one that it arrives through. The link that is free first sends next, to
where a link is free too, and of those to the one that has most left to receive; that leaves no link
idle that could work."""

from __future__ import annotations

from collections import defaultdict
from heapq import heapify, heappop, heappush

from shardopt.cost.transfers import Links, Ordered

# Messages that are put in order one by one; time grows with the square of those of a link.
_MOST_ALONE = 4096


def best_order(links: Links) -> list[int]:
    """The numbers of messages in the order in which to send them: as they stand where the busiest
    link is then never idle, else the better of this and the rule above."""
    plain = Ordered(links)
    if plain.seconds <= links.busiest_seconds * (1 + 1e-9):
        return links.numbers.tolist()
    starts = _starts(links)
    order = sorted(range(len(starts)), key=starts.__getitem__)
    if Ordered(links.reordered(order)).seconds >= plain.seconds:
        return links.numbers.tolist()
    return links.numbers[order].tolist()


def _starts(links: Links) -> list[float]:
    """When each message starts; of many, those with the same links at once."""
    rows = [*zip(links.out.tolist(), links.into.tolist(), links.seconds.tolist(), strict=True)]
    if len(rows) <= _MOST_ALONE:
        return _open_shop(*map(list, zip(*rows, strict=True)))
    total: defaultdict[tuple[int, int], float] = defaultdict(float)
    for out, into, seconds in rows:
        total[out, into] += seconds
    outs, intos = zip(*total, strict=True)
    starts = dict(zip(total, _open_shop([*outs], [*intos], [*total.values()]), strict=True))
    return [starts[out, into] for out, into, _ in rows]


def _open_shop(out: list[int], into: list[int], seconds: list[float]) -> list[float]:
    """When each message starts."""
    waiting: defaultdict[int, list[int]] = defaultdict(list)
    left: defaultdict[int, float] = defaultdict(float)  # to receive
    for number, (link, target) in enumerate(zip(out, into, strict=True)):
        waiting[link].append(number)
        left[target] += seconds[number]
    free_in: defaultdict[int, float] = defaultdict(float)
    starts = [0.0] * len(out)
    events = [(0.0, link) for link in waiting]
    heapify(events)
    while events:
        now, link = heappop(events)
        # The receiver that is free first, and of those the one with most left to receive.
        queue = waiting[link]
        number = min(queue, key=lambda each: (max(now, free_in[into[each]]), -left[into[each]]))
        start = max(now, free_in[into[number]])
        if start > now:  # until then another may come in between
            heappush(events, (start, link))
            continue
        queue.remove(number)
        starts[number] = start
        left[into[number]] -= seconds[number]
        free_in[into[number]] = start + seconds[number]
        if queue:
            heappush(events, (start + seconds[number], link))
    return starts
