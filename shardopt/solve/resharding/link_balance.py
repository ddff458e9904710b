"""Assignment of slices to links, so that the busiest link is least busy.

First each slice, largest first, goes where it makes the busiest of its links least busy. Then
slices on the busiest link of all are moved or exchanged as long as that relieves it. Where few
slices have a choice, branch and bound finds the best assignment. Each step has a budget of work, so
the result does not depend on the machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

_MOST_MOVES = 20_000  # looked at by local search
_MOST_NODES = 20_000  # of the search tree
_MOST_SEARCHED = 16  # slices with a choice; more would exhaust the budget without a proof
_EPSILON = 1e-9  # relative: less is not an improvement

Link = tuple[str, int]
Changes = tuple[tuple[int, "Option"], ...]  # slices and how they are sent instead


class Option(NamedTuple):
    """One sender of a slice: the links that are occupied, which may be one, and for how long."""

    out: Link
    into: Link
    seconds: float

    @property
    def links(self) -> tuple[Link, ...]:
        return (self.out,) if self.out == self.into else (self.out, self.into)


def assign(options: Sequence[tuple[Option, ...]]) -> list[Option | None]:
    loads = _Loads(options)
    undecided: list[int] = []
    for fetch, choices in enumerate(options):
        if len(choices) == 1:
            loads.put(fetch, choices[0])
        elif choices:
            undecided.append(fetch)
    # Largest first: small slices fill what large ones leave uneven.
    undecided.sort(key=lambda fetch: -min(option.seconds for option in options[fetch]))
    least = _bound(loads, [options[fetch] for fetch in undecided])
    for fetch in undecided:
        loads.put(
            fetch,
            min(
                options[fetch],
                key=lambda option: (loads.with_option(option), loads.seconds[option.out]),
            ),
        )
    if loads.top() > least * (1 + _EPSILON):
        _improve(loads, options, undecided)
    # Only where the bound does not show that the descent has found the best already.
    if len(undecided) <= _MOST_SEARCHED and loads.top() > least * (1 + _EPSILON):
        return _Search(loads, options, undecided, least).run()
    return loads.chosen


class _Loads:
    """Seconds of each link under an assignment; `None` stands for slices that need no sender."""

    def __init__(self, options: Sequence[tuple[Option, ...]]) -> None:
        self.seconds: defaultdict[Link, float] = defaultdict(float)
        self.chosen: list[Option | None] = [None] * len(options)

    def put(self, fetch: int, option: Option) -> None:
        for link in option.links:
            self.seconds[link] += option.seconds
        self.chosen[fetch] = option

    def with_option(self, option: Option) -> float:
        """The busier of its links, with it."""
        return max(self.seconds[option.out], self.seconds[option.into]) + option.seconds

    def top(self) -> float:
        return max(self.seconds.values(), default=0.0)

    def relieves(self, worst: Link, limit: float, changes: Sequence[tuple[Option, Option]]) -> bool:
        """Whether replacing options takes something off the worst link and brings no other one to
        the limit."""
        delta: defaultdict[Link, float] = defaultdict(float)
        for old, new in changes:
            for option, sign in ((old, -1), (new, 1)):
                for link in option.links:
                    delta[link] += sign * option.seconds
        return delta[worst] < 0 and all(
            more <= 0 or self.seconds[link] + more < limit
            for link, more in delta.items()
            if link != worst
        )

    def replace(self, fetch: int, new: Option) -> None:
        old = _sure(self.chosen[fetch])
        for link in old.links:
            self.seconds[link] -= old.seconds
        self.put(fetch, new)


def _bound(fixed: _Loads, options: Sequence[tuple[Option, ...]]) -> float:
    """Seconds that no assignment of the slices with a choice undercuts: what stands, the largest
    slice, and all of them spread evenly over the links that could send them."""
    least = max(
        fixed.top(), max((min(o.seconds for o in choices) for choices in options), default=0.0)
    )
    links = dict.fromkeys(option.out for choices in options for option in choices)
    total = sum(min(option.seconds for option in choices) for choices in options) + sum(
        fixed.seconds[link] for link in links
    )
    return max(least, total / max(len(links), 1))


def _improve(
    loads: _Loads, options: Sequence[tuple[Option, ...]], undecided: Sequence[int]
) -> None:
    """Relieve the busiest link by moving one of its slices, or by exchanging one with a slice
    elsewhere."""
    left = _MOST_MOVES
    while left > 0:
        top = loads.top()
        worst = next(link for link, seconds in loads.seconds.items() if seconds == top)
        on_it = [
            fetch
            for fetch in undecided
            if (chosen := loads.chosen[fetch]) and worst in (chosen.out, chosen.into)
        ]
        relieving: Changes = ()
        for changes in chain(
            _moves(loads, options, on_it), _exchanges(loads, options, on_it, undecided)
        ):
            left -= 1
            replaced = [(_sure(loads.chosen[fetch]), new) for fetch, new in changes]
            if loads.relieves(worst, top * (1 - _EPSILON), replaced):
                relieving = changes
                break
            if left <= 0:
                break
        if not relieving:
            return
        for fetch, option in relieving:
            loads.replace(fetch, option)


def _moves(
    loads: _Loads, options: Sequence[tuple[Option, ...]], on_it: Sequence[int]
) -> Iterator[Changes]:
    for fetch in on_it:
        yield from (((fetch, new),) for new in options[fetch] if new is not loads.chosen[fetch])


def _exchanges(
    loads: _Loads,
    options: Sequence[tuple[Option, ...]],
    on_it: Sequence[int],
    undecided: Sequence[int],
) -> Iterator[Changes]:
    for fetch in on_it:
        out = _sure(loads.chosen[fetch]).out
        for other in undecided:
            theirs = _sure(loads.chosen[other]).out
            new = next((option for option in options[fetch] if option.out == theirs), None)
            back = next((option for option in options[other] if option.out == out), None)
            # Each takes the other's sender: both links carry one slice as before, of another size.
            if out != theirs and new is not None and back is not None:
                yield ((fetch, new), (other, back))


def _sure(option: Option | None) -> Option:
    assert option is not None
    return option


class _Search:
    """Depth first over the slices with a choice, largest first; prunes what cannot beat the
    best."""

    def __init__(
        self,
        start: _Loads,
        options: Sequence[tuple[Option, ...]],
        undecided: Sequence[int],
        least: float,
    ) -> None:
        self.options, self.undecided, self.least = options, undecided, least
        self.best, self.best_top = list(start.chosen), start.top()
        self.loads = _Loads(options)
        for fetch, choices in enumerate(options):
            if len(choices) == 1:
                self.loads.put(fetch, choices[0])
        self.nodes = 0

    def run(self) -> list[Option | None]:
        self._visit(0, self.loads.top())
        return self.best

    def _visit(self, depth: int, top: float) -> None:
        if depth == len(self.undecided):
            self.best, self.best_top = list(self.loads.chosen), top
            return
        fetch = self.undecided[depth]
        ranked = sorted(
            (max(top, self.loads.with_option(o)), number)
            for number, o in enumerate(self.options[fetch])
        )
        for reached, number in ranked:
            self.nodes += 1
            done = self.best_top <= self.least * (1 + _EPSILON) or self.nodes > _MOST_NODES
            # Options are ranked: those behind this one reach as much, so the whole row is done.
            if done or reached >= self.best_top * (1 - _EPSILON):
                return
            option = self.options[fetch][number]
            before = self.loads.seconds[option.out], self.loads.seconds[option.into]
            self.loads.put(fetch, option)
            self._visit(depth + 1, reached)
            self.loads.seconds[option.out], self.loads.seconds[option.into] = before
