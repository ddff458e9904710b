"""Recompute a stage's forward pass in its backward pass, so that less is kept for every microbatch
in flight.

    %h = stablehlo.dot_general %x, %w {layer = 0}        %h = stablehlo.dot_general %x, %w {layer = 0}
    %y = stablehlo.tanh %h {layer = 0}                   %y = stablehlo.tanh %h {layer = 0}
    …                                                    …
    %d = stablehlo.multiply %g, %y {layer = 0}      =>   %b:2 = stablehlo.optimization_barrier %x, %g {layer = 0}
                                                         %h2 = stablehlo.dot_general %b#0, %w {layer = 0}
                                                         %y2 = stablehlo.tanh %h2 {layer = 0}
                                                         %d = stablehlo.multiply %b#1, %y2 {layer = 0}

It works on the clustered body of a microbatch, by *units*: a layer each ("layer"), or all layers of
a stage ("full"). The backward of a unit are its operations that depend on later units. What they
read of the unit's forward is computed again from what enters the unit. The barrier also waits for a
gradient that enters the unit: so the copies belong to the backward, are not merged with the
originals where both stand in one fragment, and do not run before they are needed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import Program
from shardopt.extract.op_graph import reads
from shardopt.graph.op_graph import SHARED
from shardopt.ir.rewriting import barrier, defining, replace_reads
from shardopt.passes.stages.outlining import clone_into

# Its results differ from run to run.
_NEVER_AGAIN = "stablehlo.rng"


def recompute_forward(program: Program, unit_of_layer: Mapping[int, int]) -> int:
    """Rewrite the body of `program`; how many operations were repeated.

    `unit_of_layer[k]` is the unit of layer k, rising with k; layers that are missing keep what they
    make. `program` is stale afterwards where anything was repeated."""
    body = _Body(program, unit_of_layer)
    return sum(body.repeat(unit) for unit in sorted(body.units))


@dataclass
class _Unit:
    """The operations of a unit in program order: `backward` are those that depend on layers behind
    `last_layer`."""

    last_layer: int
    forward: dict[ir.Operation, None] = field(default_factory=dict)
    backward: dict[ir.Operation, None] = field(default_factory=dict)


class _Body:
    """The body of a microbatch by units; `latest[v]` is the last layer that value v depends on."""

    def __init__(self, program: Program, unit_of_layer: Mapping[int, int]) -> None:
        self.layer = {op: ir.IntegerAttr(op.attributes[LAYER]).value for op in program.body_ops}
        self.position = {op: number for number, op in enumerate(program.body_ops)}
        self.units = {unit_of_layer[layer]: _Unit(layer) for layer in sorted(unit_of_layer)}
        self.latest: dict[ir.Value, int] = {}
        for op in program.body_ops:
            reached = max((self.latest.get(value, SHARED) for value in reads(op)), default=SHARED)
            self.latest.update((result, max(reached, self.layer[op])) for result in op.results)
            unit = self.units.get(unit_of_layer.get(self.layer[op], SHARED))
            if unit is not None:
                (unit.backward if reached > unit.last_layer else unit.forward)[op] = None
        self.kept = {
            value
            for number, unit in self.units.items()
            for value in self._entering(self._chain(number, unit.backward, ()))
        }

    def repeat(self, number: int) -> int:
        """Copy what the backward of a unit needs of its forward; the number of copies."""
        readers = list(self.units[number].backward)
        chain = self._chain(number, readers, self.kept)
        ready = max((self.position[op] for op in self._outside(chain)), default=-1)
        # In a backward pass that begins before the forward is complete, the first readers keep the
        # originals.
        readers = [op for op in readers if self.position[op] > ready]
        chain = self._chain(number, readers, self.kept)
        made = dict.fromkeys(
            result for op in chain if op in self.units[number].forward for result in op.results
        )
        readers = [op for op in readers if any(value in made for value in reads(op))]
        if not readers:
            return 0
        copies = self._barrier(number, chain, readers[0])
        point = ir.InsertionPoint(readers[0])
        for op in chain:
            clone_into(op, copies, point).attributes[LAYER] = op.attributes[LAYER]
        recomputed: dict[ir.Value, ir.Value] = {value: copies[value] for value in made}
        for op in readers:
            replace_reads(op, recomputed)
        return len(chain)

    def _chain(
        self, number: int, readers: Iterable[ir.Operation], kept: Container[ir.Value]
    ) -> list[ir.Operation]:
        """The forward operations of a unit that `readers` need again if `kept` are there, in
        program order.

        With them come the shared operations they read that stand behind the first reader, where
        copies stand."""
        unit, readers = self.units[number], tuple(readers)
        first = min((self.position[op] for op in readers), default=0)
        chain: dict[ir.Operation, None] = {}
        stack = [value for op in readers for value in reads(op) if defining(value) in unit.forward]
        while stack:
            value = stack.pop()
            op = defining(value)
            if op is None or op in chain or value in kept or op.name == _NEVER_AGAIN:
                continue
            is_late = self.layer.get(op) == SHARED and self.position[op] > first
            if op not in unit.forward and not is_late:
                continue
            chain[op] = None
            stack += reads(op)
        return sorted(chain, key=self.position.__getitem__)

    def _outside(self, chain: Sequence[ir.Operation]) -> list[ir.Operation]:
        """The operations whose results copies of `chain` read, apart from `chain` itself."""
        inside = dict.fromkeys(chain)
        makers = dict.fromkeys(defining(value) for op in chain for value in reads(op))
        return [op for op in makers if op is not None and op not in inside]

    def _entering(self, chain: Sequence[ir.Operation]) -> list[ir.Value]:
        """The values of `_outside` that belong to a layer: they are kept, or come from another
        stage."""
        outside = {op for op in self._outside(chain) if self.layer[op] != SHARED}
        values = dict.fromkeys(value for op in chain for value in reads(op))
        return [value for value in values if defining(value) in outside]

    def _barrier(
        self, number: int, chain: Sequence[ir.Operation], first: ir.Operation
    ) -> dict[ir.Value, ir.Value]:
        """value -> what copies read instead, behind a barrier before `first` that waits for a
        gradient `first` reads.

        Arguments need no barrier, unless nothing else would keep a copy apart from its original.
        """
        entering = self._entering(chain)
        forward = [op for op in chain if op in self.units[number].forward]
        apart = {*entering, *(result for op in forward for result in op.results)}
        sources = [op for op in forward if not any(value in apart for value in reads(op))]
        arguments = (v for op in sources for v in reads(op) if isinstance(v, ir.BlockArgument))
        entering += dict.fromkeys(arguments)
        gradient = next(
            v for v in reads(first) if self.latest.get(v, SHARED) > self.units[number].last_layer
        )
        passed = [*entering, gradient]
        behind = barrier(passed, first.location, ir.InsertionPoint(first))
        behind.attributes[LAYER] = first.attributes[LAYER]
        replace_reads(first, {gradient: behind.results[len(entering)]})
        return dict(zip(entering, behind.results, strict=False))
