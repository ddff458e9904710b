"""Slices of chips that are a torus, or a part of one: which links serve the groups of a mesh.

    o - o - o - o =     A slice has two links along every dimension; those at its rim lead around
    |   |   |   |       where the dimension wraps, and nowhere where it does not.
    o - o - o - o =

A collective over several dimensions uses the links of all of them at once: what it moves is cut
into parts that take the dimensions in different orders (Austin et al., "How to Scale Your Model",
chapters 2 and 3, https://github.com/jax-ml/scaling-book). Axes of a mesh lie as
`jax.experimental.mesh_utils.create_device_mesh` puts them: last axis first, each over as many whole
dimensions as make its size, parts of dimensions where no whole ones do
(`allow_split_physical_axes`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple


@dataclass(frozen=True)
class Torus:
    """`slice` is the largest one in chips along each dimension. A dimension of a multiple of
    `wraps` chips leads around; with `wraps_together` only where all dimensions do."""

    slice: tuple[int, ...]
    wraps: int
    wraps_together: bool = False

    @property
    def size(self) -> int:
        """Chips of the largest slice."""
        return math.prod(self.slice)

    def shape(self, chips: int) -> tuple[int, ...] | None:
        """Of a slice of so many chips, small dimensions first: the one of the least surface; None
        where none fits into the largest."""
        most = tuple(sorted(self.slice))
        fitting = [
            shape
            for shape in _factors(chips, (chips,) * len(most))
            if all(map(int.__le__, shape, most)) and list(shape) == sorted(shape)
        ]
        return min(fitting, key=lambda shape: (sum(shape), shape), default=None)

    def wrapped(self, shape: Sequence[int]) -> tuple[bool, ...]:
        """Which dimensions of a slice lead around; two chips have one link between them."""
        whole = [size % self.wraps == 0 for size in shape]
        together = all(whole) or not self.wraps_together
        return tuple(
            wraps and together and size > 2 for wraps, size in zip(whole, shape, strict=True)
        )


def box(shape: Sequence[int], chips: int) -> tuple[int, ...] | None:
    """Part of a slice of that shape with so many chips, which divides it: the one of the least
    surface; None where there is none."""
    return min(_factors(chips, tuple(shape)), key=lambda part: (sum(part), part), default=None)


def _factors(number: int, divided: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Ways to write a number as one factor for each of some others, which it divides."""
    if not divided:
        if number == 1:
            yield ()
        return
    first, *others = divided
    common = math.gcd(number, first)
    for factor in range(1, common + 1):
        if common % factor == 0:
            for rest in _factors(number // factor, others):
                yield (factor, *rest)


Parts = tuple[int, ...]


@lru_cache(maxsize=1024)
def lying(axes: tuple[int, ...], part: tuple[int, ...]) -> tuple[Parts, ...]:
    """For each axis of a mesh over a part of a torus, of which it has all chips, how many steps it
    takes along each dimension. Later axes lie inside of earlier ones. The choice is that of
    `_prefer_first_logical_axis_assignment` in JAX's `mesh_utils`."""
    free = list(part)
    chosen: list[Parts] = []
    for size in reversed(axes):
        left = tuple(free)
        _, best = max((_preference(parts, part, left), parts) for parts in _factors(size, left))
        free = [of // taken for of, taken in zip(left, best, strict=True)]
        chosen.append(best)
    return tuple(reversed(chosen))


def _preference(parts: Parts, part: Parts, free: Parts) -> tuple[int, int, int, Parts]:
    """The larger, the sooner an axis takes so many steps along dimensions of which later axes left
    so many free."""
    whole = [taken for taken, length in zip(parts, part, strict=True) if taken == length > 1]
    beside = math.prod(
        taken for taken, length, left in zip(parts, part, free, strict=True) if left < length
    )
    return math.prod(whole), len(whole), beside, parts


@dataclass(frozen=True)
class TorusRates:
    """Of a device in the groups along some axes, as multiples of what one link carries in one
    direction: while it takes part in a ring collective, while it sends as much to every other
    member, and while it sends to the next. `steps` are the hops of a gather, one after another."""

    ring: float
    exchange: float
    shift: float
    steps: int


def rates(
    axes: Sequence[Parts], chosen: Sequence[bool], part: Sequence[int], wraps: Sequence[bool]
) -> TorusRates:
    """Of groups of at least two along the `chosen` of the axes, which lie so (`lying`).

    Along a dimension that they go around, groups have two links a device; along a line the chip
    at its end has one, and that bounds what it can be sent. Groups that lie between each other
    share their links. What is gathered crosses each set of dimensions at least once, best before
    all others, and the parts may take all orders: the set that takes longest decides.

    Each dimension is crossed by what its halves send each other in an exchange, by shortest ways:
    of n members, f along it, a link carries n f / 8 messages on a ring, n f / 4 in the middle of a
    line. What is sent to the next goes over each link once, back from the end of a line by the
    links of the other direction."""
    spans = [
        span
        for dimension, whole in enumerate(part)
        if (span := _span(axes, chosen, dimension, whole, wraps[dimension])).members > 1
    ]
    members = math.prod(span.members for span in spans)
    seconds = max(
        (math.prod(span.members for span in some) - 1) / sum(span.links for span in some)
        for count in range(1, len(spans) + 1)
        for some in combinations(spans, count)
    )
    # Of n messages, n / f to each place along a dimension, halves cross the middle of it.
    busiest = max(members * (span.members**2 // 4) / span.members / span.links for span in spans)
    return TorusRates(
        ring=(members - 1) / seconds,
        exchange=(members - 1) / busiest,
        shift=1 / max(span.shared for span in spans),
        steps=sum(span.members - 1 for span in spans),
    )


class _Span(NamedTuple):
    """Of a group along one dimension: its members, and how many groups share their links, of
    which one has so many a member."""

    members: int
    shared: int
    links: float


def _span(
    axes: Sequence[Parts], chosen: Sequence[bool], dimension: int, whole: int, wraps: bool
) -> _Span:
    count, between, shared = 1, 1, 1
    for parts, of in zip(reversed(axes), reversed(chosen), strict=True):
        taken = parts[dimension]
        if not of:
            between *= taken
        elif taken > 1:
            count, shared = count * taken, between
    return _Span(count, shared, (2 if wraps and count * shared == whole else 1) / shared)
