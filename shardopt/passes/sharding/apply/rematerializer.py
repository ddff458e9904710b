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

from collections.abc import Iterable, Sequence

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
        made = {self.reader.ops[op].results[0] for op in chain}
        [tensor] = self.reader.ops[chain[-1]].results
        sources = dict.fromkeys(v for op in chain for t, v in self._reads(op) if t not in made)
        behind = self._barrier(list(sources), first, self._values_of(min(readers), tensor))
        copies: dict[int, ir.Value] = {}
        for op, strategy in zip(chain, strategies, strict=True):
            copy = self.reader.handles[op].clone(ip=ir.InsertionPoint(first))
            write_strategy(copy, strategy)
            for position, (operand, value) in enumerate(self._reads(op)):
                value_here = copies[operand] if operand in made else behind.get(value, value)
                copy.operands[position] = self._constrained(
                    value_here, strategy.operands[position], copy
                )
            self.shardings[copy.results[0]] = strategy.results[0]
            copies[self.reader.ops[op].results[0]] = copy.results[0]
        self._hand(tensor, readers, copies[tensor])

    def copy_separately(self, tensor: int, readers: Sequence[int]) -> None:
        """Let `readers`, in program order, have `tensor` through a barrier, so that they share no
        copy with others."""
        first = self.reader.handles[readers[0]]
        dropped = self._values_of(readers[0], tensor)
        behind = self._barrier(dropped[:1], first, dropped)[dropped[0]]
        self._hand(tensor, readers, behind)

    def _hand(self, tensor: int, readers: Sequence[int], value: ir.Value) -> None:
        """Let `readers` have `value` as `tensor`.

        Some have the tensor from behind a barrier of their own, which keeps them from being merged
        with operations in front of it: they get `value` behind another one."""
        read_as: dict[ir.Value, list[int]] = {}
        for reader in sorted(readers):
            for old in self._values_of(reader, tensor):
                read_as.setdefault(old, []).append(reader)
        for number, (old, those) in enumerate(read_as.items()):
            first = self.reader.handles[those[0]]
            new = value if not number else self._barrier([value], first, [old])[value]
            for reader in those:
                _replace(self.reader.handles[reader], old, new)

    def _reads(self, op: int) -> list[tuple[int, ir.Value]]:
        """What an operation reads now: (tensor, value). One tensor is several values where it has
        come through barriers, or was copied for some of its readers."""
        # Values that regions capture stand behind the operands.
        pairs = zip(self.reader.ops[op].operands, self.reader.handles[op].operands, strict=False)
        return list(pairs)

    def _values_of(self, op: int, tensor: int) -> list[ir.Value]:
        return list(dict.fromkeys(value for t, value in self._reads(op) if t == tensor))

    def _barrier(
        self, values: Sequence[ir.Value], before: ir.Operation, dropped: Iterable[ir.Value]
    ) -> dict[ir.Value, ir.Value]:
        """value -> what it is behind a barrier that also waits for the latest other operand of
        `before`."""
        position = self._anchor(before, {*values, *dropped})
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
