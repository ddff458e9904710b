"""How many microbatches, beside the one in the order of operations, what fragments of the loop hand
on to others is held for, and when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from shardopt.graph.residency import MicrobatchLoop


@dataclass(frozen=True)
class FurtherMicrobatches:
    """`group_start` and `group_stop` are the first position of each fragment and the one behind its
    last, `loop_span` those of the loop."""

    loop: MicrobatchLoop
    group_start: Mapping[int, int]
    group_stop: Mapping[int, int]
    loop_span: tuple[int, int]

    def spans(self, groups: frozenset[int]) -> tuple[tuple[int, int, int], ...]:
        """(from, to, for how many microbatches more than one) what these fragments hand on is
        held."""
        if not groups:
            return ()
        # One of them is in the order of operations already, as far as that has come.
        usual = self.loop.in_flight_of(groups) - 1
        begin, end = self.loop_span
        spans, at = list[tuple[int, int, int]](), begin
        for start, stop, count in self._while_others_run(groups):
            spans += [(at, start, usual), (start, stop, count)]
            at = stop
        return tuple(_merged((*spans, (at, end, usual))))

    def _while_others_run(self, groups: frozenset[int]) -> Iterator[tuple[int, int, int]]:
        """The spans in which fragments of other stages of the mesh run, in order, and for how many
        microbatches what these fragments hand on is held then, but for the one that is in the order
        of operations."""
        loop = self.loop
        stages = {loop.stage_of[group] for group in groups if group in loop.stage_of}
        first = min(self.group_start[group] for group in groups)
        last = max(self.group_stop[group] for group in groups)
        most, (begin, end) = loop.in_flight_of(groups), self.loop_span
        for start, group in sorted((self.group_start.get(g, -1), g) for g in loop.stage_of):
            stop = self.group_stop.get(group, 0)
            if loop.stage_of[group] in stages or start < begin or stop > end:
                continue
            counts = (loop.beside.get((group, stage), most) for stage in stages)
            count = max(counts, default=most)
            is_between = first <= start and stop <= last
            yield start, stop, max(0, count - is_between)


def _merged(spans: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Spans that follow each other, as few as there can be, without those that count nothing."""
    for count, each in groupby((span for span in spans if span[0] < span[1]), itemgetter(2)):
        parts = list(each)
        if count:
            yield parts[0][0], parts[-1][1], count
