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
                                                %d = multiply %g, %y2        reader"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shardopt.graph.layered_body import OUTSIDE, LayeredBody
from shardopt.graph.op_graph import SHARED


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


def find_recomputations(
    body: LayeredBody, unit_of_layer: Mapping[int, int]
) -> tuple[Recomputation, ...]:
    """What every unit recomputes, unit by unit. `unit_of_layer[k]` is the unit of layer k, rising
    with k; layers that are missing keep what they make.

    The units do not touch each other: copies are read in the backward of their own unit, which
    holds no forward of another."""
    finder = _Finder(body, unit_of_layer)
    each = (finder.of_unit(unit) for unit in sorted(finder.units))
    return tuple(recomputation for recomputation in each if recomputation is not None)


@dataclass
class _Unit:
    """The rows of a unit in program order: `backward` are those that depend on layers behind
    `last_layer`."""

    last_layer: int
    forward: dict[int, None] = field(default_factory=dict)
    backward: dict[int, None] = field(default_factory=dict)


class _Finder:
    def __init__(self, body: LayeredBody, unit_of_layer: Mapping[int, int]) -> None:
        self.body = body
        self.units = {unit_of_layer[layer]: _Unit(layer) for layer in sorted(unit_of_layer)}
        for row, layer in enumerate(body.layers):
            unit = self.units.get(unit_of_layer.get(layer, SHARED))
            if unit is not None:
                is_backward = body.reached[row] > unit.last_layer
                (unit.backward if is_backward else unit.forward)[row] = None
        # What some unit is recomputed from is there in any case, so no unit recomputes it.
        self.kept = {
            value
            for unit in self.units.values()
            for value in self._entering(self._chain(unit, unit.backward, ()))
        }

    def of_unit(self, number: int) -> Recomputation | None:
        """None where the backward of a unit needs nothing of its forward."""
        body, unit = self.body, self.units[number]
        readers = list(unit.backward)
        ready = max(self._outside(self._chain(unit, readers, self.kept)), default=-1)
        # In a backward pass that begins before the forward is complete, the first readers keep the
        # originals.
        readers = [row for row in readers if row > ready]
        chain = self._chain(unit, readers, self.kept)
        made = dict.fromkeys(
            value for row in chain if row in unit.forward for value in body.makes[row]
        )
        readers = [row for row in readers if any(value in made for value in body.reads[row])]
        if not readers:
            return None

        def depth(value: int) -> int:
            return body.latest.get(value, SHARED)

        awaited = body.awaited(readers[0])
        return Recomputation(
            tuple(chain),
            tuple(readers),
            tuple(made),
            (*self._entering(chain), *self._arguments(unit, chain)),
            next(value for value in awaited if depth(value) > unit.last_layer),
            max(awaited, key=depth),
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
