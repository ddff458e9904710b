"""What a stage recomputes in its backward pass, so that less is kept for every microbatch in
flight.

It goes by *units*: a layer each, or all layers of a stage. The backward of a unit are its rows that
depend on later units. What they read of the unit's forward is recomputed from what enters the unit,
right before the first of them (Chen et al., arXiv 1604.06174, with layers or stages as segments).

    %h = dot_general %x, %w                     %h = dot_general %x, %w
    %y = tanh %h                                %y = tanh %h
    …                                     ─▶    …
    %d = multiply %g, %y   (backward)           %h2 = dot_general %x, %w     chain
                                                %y2 = tanh %h2
                                                %d = multiply %g, %y2        reader

A *selective* unit keeps more than what enters it (`shardopt.solve.stages.body.selection`). What it
recomputes falls into pieces that share nothing: each stands before the first of its own readers, so
that the scores of one block are gone before those of the next are there."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field

from shardopt.graph.layered_body import OUTSIDE, LayeredBody
from shardopt.graph.op_graph import SHARED
from shardopt.graph.recomputed_units import RecomputedUnits
from shardopt.solve.stages.body.selection import select_kept


@dataclass(frozen=True)
class Recomputation:
    """Copies of the rows `chain`, in this order, stand before the first of `readers`, which from
    there on read the copies of the values `made`.

    A barrier keeps the copies from running early and from being merged with their originals: it
    passes on the values `entering`, from which they are computed, and waits for `gradient`, the
    first value of later layers that the first reader waits for; `latest` is the one of these that
    depends on the last layer."""

    chain: tuple[int, ...]
    readers: tuple[int, ...]
    made: tuple[int, ...]
    entering: tuple[int, ...]
    gradient: int
    latest: int


def find_recomputations(body: LayeredBody, units: RecomputedUnits) -> tuple[Recomputation, ...]:
    """What every unit recomputes, unit by unit. Where some are selective, `body` has work and
    sizes.

    The units do not touch each other: copies are read in the backward of their own unit, which
    holds no forward of another."""
    finder = _Finder(body, units)
    return tuple(
        recomputation for unit in sorted(finder.units) for recomputation in finder.of_unit(unit)
    )


@dataclass
class _Unit:
    """The rows of a unit in program order: `backward` are those that depend on layers behind
    `last_layer`."""

    last_layer: int
    forward: dict[int, None] = field(default_factory=dict)
    backward: dict[int, None] = field(default_factory=dict)


class _Finder:
    def __init__(self, body: LayeredBody, units: RecomputedUnits) -> None:
        self.body, self.selective = body, units.selective
        of_layer = units.of_layer
        self.units = {of_layer[layer]: _Unit(layer) for layer in sorted(of_layer)}
        for row, layer in enumerate(body.layers):
            unit = self.units.get(of_layer.get(layer, SHARED))
            if unit is not None:
                is_backward = body.reached[row] > unit.last_layer
                (unit.backward if is_backward else unit.forward)[row] = None
        # What some unit is recomputed from is there in any case, so no unit recomputes it.
        self.kept = {
            value
            for unit in self.units.values()
            for value in self._entering(self._chain(unit, unit.backward, ()))
        }

    def of_unit(self, number: int) -> Iterator[Recomputation]:
        """Nothing where the backward of a unit needs nothing of its forward."""
        unit = self.units[number]
        if number not in self.selective:
            yield from self._recomputation(unit, tuple(unit.backward), self.kept)
            return
        kept = self._selected(unit)
        for piece, others in self._pieces(unit, kept):
            yield from self._recomputation(unit, piece, kept | others)

    def _recomputation(
        self, unit: _Unit, readers: Sequence[int], kept: Set[int]
    ) -> Iterator[Recomputation]:
        """What `readers` need recomputed if `kept` are there."""
        body = self.body
        ready = max(self._outside(self._chain(unit, readers, kept)), default=-1)
        # In a backward pass that begins before the forward is complete, the first readers keep the
        # originals.
        readers = [row for row in readers if row > ready]
        chain = self._chain(unit, readers, kept)
        made = dict.fromkeys(
            value
            for row in chain
            if row in unit.forward
            for value in body.makes[row]
            if value not in kept
        )
        readers = [row for row in readers if any(value in made for value in body.reads[row])]
        if not readers:
            return

        def depth(value: int) -> int:
            return body.latest.get(value, SHARED)

        awaited = body.awaited(readers[0])
        yield Recomputation(
            tuple(chain),
            tuple(readers),
            tuple(made),
            (*self._entering(chain), *self._arguments(unit, chain)),
            next(value for value in awaited if depth(value) > unit.last_layer),
            max(awaited, key=depth),
        )

    def _selected(self, unit: _Unit) -> frozenset[int]:
        """What a selective unit keeps. Other units have no say in it: what they do is not known
        where the cost of a stage is found."""
        body = self.body
        read = {value for row in unit.backward for value in body.reads[row]}
        there = {value for value in read if body.maker(value) not in unit.forward}
        return select_kept(body, unit.forward, unit.backward, there) | there

    def _pieces(
        self, unit: _Unit, kept: Set[int]
    ) -> Iterator[tuple[tuple[int, ...], frozenset[int]]]:
        """The readers of what hangs together of the rows that are recomputed, or is needed by the
        same first reader; and the values that other pieces make."""
        body = self.body
        chain = [row for row in self._chain(unit, unit.backward, kept) if row in unit.forward]
        lead = {row: row for row in chain}

        def leader(row: int) -> int:
            while lead[row] != row:
                lead[row] = row = lead[lead[row]]
            return row

        for row in chain:
            for value in body.reads[row]:
                maker = body.maker(value)
                if maker in lead and value not in kept:
                    lead[leader(row)] = leader(maker)
        read_of = {
            row: [body.maker(v) for v in body.reads[row] if body.maker(v) in lead and v not in kept]
            for row in unit.backward
        }
        first_of: dict[int, int] = {}
        for row, makers in read_of.items():
            for maker in makers:
                first_of.setdefault(leader(maker), row)
        piece = {row: first_of[leader(row)] for row in chain}
        for first in dict.fromkeys(first_of.values()):
            others = (row for row in chain if piece[row] != first)
            yield (
                tuple(r for r, makers in read_of.items() if first in {piece[m] for m in makers}),
                frozenset(value for row in others for value in body.makes[row]),
            )

    def _chain(self, unit: _Unit, readers: Iterable[int], kept: Container[int]) -> list[int]:
        """The forward rows of a unit that `readers` need recomputed if `kept` are there, in program
        order.

        With them come the shared rows they read that stand behind the first reader, where copies
        stand."""
        body, readers = self.body, tuple(readers)
        first = min(readers, default=0)
        chain: set[int] = set()
        stack = [
            value
            for row in readers
            for value in body.reads[row]
            if body.maker(value) in unit.forward
        ]
        while stack:
            value = stack.pop()
            row = body.maker(value)
            if row == OUTSIDE or row in chain or value in kept or row in body.random:
                continue
            is_late = body.layers[row] == SHARED and row > first
            if row in unit.forward or is_late:
                chain.add(row)
                stack += body.reads[row]
        return sorted(chain)

    def _outside(self, chain: Sequence[int]) -> list[int]:
        """The rows whose values copies of `chain` read, apart from `chain` itself."""
        inside = set(chain)
        makers = dict.fromkeys(
            self.body.maker(value) for row in chain for value in self.body.reads[row]
        )
        return [row for row in makers if row != OUTSIDE and row not in inside]

    def _entering(self, chain: Sequence[int]) -> list[int]:
        """The values of `_outside` that belong to a layer: they are kept, or come from another
        stage."""
        outside = {row for row in self._outside(chain) if self.body.layers[row] != SHARED}
        values = dict.fromkeys(value for row in chain for value in self.body.reads[row])
        return [value for value in values if self.body.maker(value) in outside]

    def _arguments(self, unit: _Unit, chain: Sequence[int]) -> list[int]:
        """The values from outside the body that pass the barrier, too: those that rows read which
        nothing else would keep apart from their originals."""
        body = self.body
        forward = [row for row in chain if row in unit.forward]
        apart = {*self._entering(chain), *(value for row in forward for value in body.makes[row])}
        sources = [row for row in forward if not apart.intersection(body.reads[row])]
        arguments = (
            value for row in sources for value in body.reads[row] if body.maker(value) == OUTSIDE
        )
        return list(dict.fromkeys(arguments))
