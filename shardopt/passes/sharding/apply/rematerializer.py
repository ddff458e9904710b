"""Values recomputed, and copies of operands made anew, behind barriers that keep the compiler from
undoing it.

    %y = stablehlo.tanh %z                         %y = stablehlo.tanh %z
    %h = stablehlo.dot_general %y, %w              %h = stablehlo.dot_general %y, %w
    …                                         =>   …
    %g = stablehlo.multiply %y, %d                 %b:2 = stablehlo.optimization_barrier %z, %d
                                                   %y2 = stablehlo.tanh %b#0
                                                   %g = stablehlo.multiply %y2, %b#1

Without the barrier common subexpressions would be merged again. A late operand of the reader goes
through it as well: otherwise the copies could run right behind the originals, and save nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from shardopt.dialect.strategy import OpStrategy, read_strategy, write_strategy
from shardopt.extract.op_graph import CHEAP_TO_CLONE, GraphReader
from shardopt.ir.rewriting import barrier, defining, identity
from shardopt.mesh.mesh import Sharding


class Rematerializer:
    """Rewrites a fragment; `shardings` of all values so far, to which those of new values are
    added. New operations get strategies, but for barriers, which have none."""

    def __init__(self, reader: GraphReader, shardings: dict[ir.Value, Sharding]) -> None:
        self.reader, self.shardings = reader, shardings
        # The part that a device keeps of a sum is written behind the operation later, and has no
        # number.
        self.number = {
            handle: number
            for number, handle in enumerate(reader.handles)
            if not read_strategy(handle).is_scattered
        }

    def recompute(
        self, chain: Sequence[int], readers: Sequence[int], strategies: Sequence[OpStrategy]
    ) -> None:
        """Copy the operations `chain` before the first of `readers`, which then read the last
        copy's result.

        `strategies` are those of the copies.
        """
        first = self.reader.handles[min(readers)]
        originals = [self.reader.handles[op] for op in chain]
        value: ir.Value = originals[-1].results[0]
        made = {original.results[0] for original in originals}
        sources = [
            v for v in dict.fromkeys(v for op in originals for v in op.operands) if v not in made
        ]
        behind = self._barrier(sources, first, value)
        copies: dict[ir.Value, ir.Value] = {}
        for original, strategy in zip(originals, strategies, strict=True):
            copy = original.clone(ip=ir.InsertionPoint(first))
            write_strategy(copy, strategy)
            for position, operand in enumerate(list(copy.operands)):
                value_here = copies.get(operand, behind.get(operand, operand))
                copy.operands[position] = self._constrained(
                    value_here, strategy.operands[position], copy
                )
            self.shardings[copy.results[0]] = strategy.results[0]
            copies[original.results[0]] = copy.results[0]
        for reader in readers:
            _replace(self.reader.handles[reader], value, copies[value])

    def copy_separately(self, tensor: int, readers: Sequence[int]) -> None:
        """Let `readers`, in program order, have `tensor` through a barrier, so that they share no
        copy with others."""
        first = self.reader.handles[readers[0]]
        tensors = self.reader.ops[readers[0]].operands
        for value in dict.fromkeys(
            v for v, t in zip(first.operands, tensors, strict=False) if t == tensor
        ):
            behind = self._barrier([value], first, value)
            for reader in readers:
                _replace(self.reader.handles[reader], value, behind[value])

    def _barrier(
        self, values: Sequence[ir.Value], before: ir.Operation, dropped: ir.Value
    ) -> dict[ir.Value, ir.Value]:
        """value -> what it is behind a barrier that also waits for the latest other operand of
        `before`."""
        position = self._anchor(before, {*values, dropped})
        anchor = None if position is None else before.operands[position]
        passed = [*values] if position is None else [*values, self._as_read(before, position)]
        if not passed:
            return {}
        results = barrier(passed, before.location, ir.InsertionPoint(before)).results
        for value, result in zip(passed, results, strict=True):
            self.shardings[result] = self.shardings[value]
        # Only the reader waits for the anchor: who else reads it takes it as before.
        if position is not None:
            required = read_strategy(before).operands
            for each, operand in enumerate(list(before.operands)):
                if operand == anchor and required[each] == required[position]:
                    before.operands[each] = results[-1]
        return dict(zip(values, results, strict=False))

    def _as_read(self, reader: ir.Operation, position: int) -> ir.Value:
        """An operand in the sharding in which `reader` wants it. Behind the barrier it is another
        value, and would be moved once more where others want it moved, too."""
        value, required = reader.operands[position], read_strategy(reader).operands[position]
        if self.shardings[value] == required:
            return value
        stop = identity(value, reader.location, ir.InsertionPoint(reader))
        write_strategy(stop, OpStrategy.plain([required], [required]))
        self.shardings[stop.result] = required
        return stop.result

    def _anchor(self, reader: ir.Operation, excluded: set[ir.Value]) -> int | None:
        """The position of the operand of `reader` that is computed last."""
        latest: tuple[int, int] | None = None
        for position, value in enumerate(reader.operands):
            maker = defining(value)
            # Arguments and constants are there from the start: a wait for them delays nothing.
            if value in excluded or maker is None or maker.name in CHEAP_TO_CLONE:
                continue
            number = self.number.get(maker, -1)
            if latest is None or number > latest[0]:
                latest = number, position
        return None if latest is None else latest[1]

    def _constrained(self, value: ir.Value, required: Sharding, before: ir.Operation) -> ir.Value:
        if self.shardings[value] == required:
            return value
        stop = identity(value, before.location, ir.InsertionPoint(before))
        write_strategy(stop, OpStrategy.plain([self.shardings[value]], [required]))
        self.shardings[stop.result] = required
        return stop.result


def _replace(op: ir.Operation, old: ir.Value, new: ir.Value) -> None:
    for position, operand in enumerate(list(op.operands)):
        if operand == old:
            op.operands[position] = new


def later_readers(
    reader: GraphReader,
    required: Mapping[int, Sequence[Sharding]],
    tensor: int,
    sharding: Sharding,
    first: int,
) -> tuple[int, ...]:
    """Operations of the scope of `first`, from there on, that want `tensor` in `sharding`."""
    scope = reader.ops[first].scope
    return tuple(
        number
        for number in range(first, len(reader.ops))
        if reader.ops[number].scope == scope
        and any(
            t == tensor and s == sharding
            for t, s in zip(reader.ops[number].operands, required[number], strict=True)
        )
    )
