"""Take a loop in which the step itself accumulates over parts of its batch for the microbatch loop.

    %r:3 = while(%i = 0, %x = %xs, %a = %init) {          %b = reshape %xs : 4x2x8
      %p = dynamic_slice %x, %i        // 2x8       =>    %s = mpmd.for (%zeros) {iterations = 4} …
      %d = …%p…                                           // @microbatch: block %i of %b, add
      return %i + 1, %x, %a + %d }                        %r = add %init, %s

What is carried is a sum, a stack of blocks, a counter, or does not change
(`shardopt.extract.accumulation`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from shardopt.extract.accumulation import Accumulation, ancestors, origins
from shardopt.extract.op_graph import reads
from shardopt.graph.microbatching import Split
from shardopt.ir.rewriting import (
    defining,
    replace_reads,
    shape_of,
    terminator,
)
from shardopt.ir.scalars import scalar_constant
from shardopt.ir.splats import read_splat, splat_constant
from shardopt.passes.microbatches.batching import (
    Microbatch,
    blocks_type,
    combine,
    neutral,
    split_blocks,
)
from shardopt.passes.microbatches.invariants import hoist_invariants, pieces_of
from shardopt.passes.microbatches.loop_frame import write_for, write_function
from shardopt.solve.microbatches.axis import NEUTRAL
from shardopt.solve.microbatches.sources import MAX_CLONED_OPS

_SPREADING = ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.convert")


class LoopAdopter:
    """Rewrites `@main` in place; the operation of `found.loop` is gone afterwards."""

    def __init__(self, module: ir.Module, main: ir.Operation, found: Accumulation) -> None:
        self.module, self.main, self.found, self.loop = module, main, found, found.loop
        hoist_invariants(found.loop, found.kept)
        self.sums = {
            position: (each.reducer, pieces_of(each.term)) for position, each in found.sums.items()
        }
        self.body = found.loop.regions[1].blocks[0]
        self.loc = found.loop.location
        self.outer = [view.operation for view in main.regions[0].blocks[0].operations]

    def write(self) -> None:
        self._move_behind()
        with ir.InsertionPoint(self.loop), self.loc:
            views = dict.fromkeys(self.found.slices.values())
            blocks = [
                split_blocks(self.loop.operands[position], split, self.found.count)
                for position, split in views
            ]
            chained = self._write_chains()
            captured = list(self._captured())
            initial = self._initial()
            captured += [(chained[k][0], self.body.arguments[k]) for k in sorted(chained)]
            values = [*blocks, *(value for value, _ in captured)]
            self._write_body(list(views), captured, values, initial)
            results = write_for(values, initial, self.found.count, self.loc).results
            behind = {
                **{position: last for position, (_, last) in chained.items()},
                **self._collected(list(results)),
            }
            replaced = [
                behind[position] if position in behind else self._unchanged(position)
                for position in range(len(self.loop.results))
            ]
        for result, value in zip(self.loop.results, replaced, strict=True):
            result.replace_all_uses_with(value)
        self.loop.erase()

    def batch(self) -> dict[int, int]:
        """The arguments that the loop takes blocks of, as they are or reshaped, with the
        dimension."""
        found = {}
        for position, split in self.found.slices.values():
            value = self.loop.operands[position]
            while (op := defining(value, "stablehlo.reshape")) is not None:
                value = op.operands[0]
            # Blocks along dimension 0 are the same elements in any shape.
            rows = (*shape_of(value), 0)[0]
            is_block = not split.dim and rows > 0 and rows % self.found.count == 0
            if defining(value) is None and is_block:
                found[ir.BlockArgument(value).arg_number] = 0
        return found

    def _move_behind(self) -> None:
        """What the loop does not need stands behind it."""
        at = self.outer.index(self.loop)
        needed = set(ancestors(self.outer[:at], reads(self.loop)))
        for op in self.outer[:at]:
            if op not in needed:
                op.move_before(self.outer[at + 1])

    def _needed(self) -> list[ir.Operation]:
        """What the body of a microbatch needs of that of the loop."""
        body = [view.operation for view in self.body.operations]
        return ancestors(body, self._terms(), self.found.slices.keys())

    def _terms(self) -> list[ir.Value]:
        """What each microbatch adds to sums, and writes into stacks."""
        terms = [value for _, pieces in self.sums.values() for value in pieces.values]
        return terms + [each.update for each in self.found.stacks.values()]

    def _captured(self) -> Iterator[tuple[ir.Value, ir.Value]]:
        """Values of `@main` that the body reads whole, each with its name inside of the loop."""
        inside = {value for view in self.body.operations for value in view.operation.results}
        read = dict.fromkeys([v for op in self._needed() for v in reads(op)] + self._terms())
        for value in read:
            if value in inside or self._constants(value):
                continue
            position = self._position(value)
            if position is None:
                yield value, value
            elif position in self.found.kept:
                yield self.loop.operands[position], value

    def _position(self, value: ir.Value) -> int | None:
        """Of an argument of the loop."""
        if defining(value) is not None or ir.BlockArgument(value).owner != self.body:
            return None
        return ir.BlockArgument(value).arg_number

    def _constants(self, value: ir.Value) -> list[ir.Operation]:
        """A few operations that make a value of `@main` of nothing, for the body to repeat."""
        if self._position(value) is not None or defining(value) is None or origins(value):
            return []
        cone = ancestors(self.outer, [value])
        return cone if len(cone) <= MAX_CLONED_OPS else []

    def _initial(self) -> list[ir.Value]:
        """What sums, piece by piece, and stacks begin with."""
        sums = [
            neutral(value.type, reducer)
            for reducer, pieces in self.sums.values()
            for value in pieces.values
        ]
        types = [
            blocks_type(self.loop.operands[position].type, each.split, self.found.count)
            for position, each in self.found.stacks.items()
        ]
        return sums + [neutral(type_, "") for type_ in types]

    def _write_body(
        self,
        views: Sequence[tuple[int, Split]],
        captured: Sequence[tuple[ir.Value, ir.Value]],
        entering: Sequence[ir.Value],
        initial: Sequence[ir.Value],
    ) -> None:
        block = write_function(self.module, entering, initial, self.loc)
        arguments = list(block.arguments)
        microbatch = Microbatch(arguments[-1], self.found.count)
        with ir.InsertionPoint(block):
            parts = {
                view: microbatch.slice(argument, view[1])
                for view, argument in zip(views, arguments, strict=False)
            }
            values = {value: parts[view] for value, view in self.found.slices.items()}
            names = [name for _, name in captured]
            values.update(zip(names, arguments[len(views) :], strict=False))
            for argument in (self.body.arguments[k] for k in sorted(self.found.chains)):
                row = microbatch.slice(*_in_rows(values[argument], self.found.count))
                values[argument] = stablehlo.ReshapeOp(argument.type, row).result
            self._write_scalars(microbatch, values)
            for op in self._needed():
                self._clone(op, values)
            self._return(microbatch, values, arguments[len(entering) : -1])

    def _write_scalars(self, microbatch: Microbatch, values: dict[ir.Value, ir.Value]) -> None:
        """Counters of the loop, from the number of the microbatch."""
        for position, numbers in self.found.scalars.items():
            argument = self.body.arguments[position]
            if position in self.found.kept or not any(True for _ in argument.uses):
                continue
            type_ = argument.type
            step = splat_constant(type_, numbers[1] - numbers[0])
            count = stablehlo.ConvertOp(type_, microbatch.index).result
            scaled = stablehlo.MulOp(count, step).result
            values[argument] = stablehlo.AddOp(scaled, splat_constant(type_, numbers[0])).result

    def _clone(self, op: ir.Operation, values: dict[ir.Value, ir.Value]) -> None:
        for value in reads(op):
            if value not in values:
                for made in self._constants(value):
                    if made.results[0] not in values:
                        self._copy(made, values)
        self._copy(op, values)

    @staticmethod
    def _copy(op: ir.Operation, values: dict[ir.Value, ir.Value]) -> None:
        copy = op.clone()
        replace_reads(copy, values)
        values.update(zip(op.results, copy.results, strict=True))

    def _return(
        self,
        microbatch: Microbatch,
        values: Mapping[ir.Value, ir.Value],
        accumulators: Sequence[ir.Value],
    ) -> None:
        terms = [
            (reducer, value) for reducer, pieces in self.sums.values() for value in pieces.values
        ]
        results = [
            combine(reducer, accumulator, values[value])
            for (reducer, value), accumulator in zip(terms, accumulators, strict=False)
        ]
        stacks = self.found.stacks.values()
        results += [
            microbatch.store(accumulator, values[each.update], each.split)
            for each, accumulator in zip(stacks, accumulators[len(terms) :], strict=True)
        ]
        func.ReturnOp(results)

    def _collected(self, results: list[ir.Value]) -> dict[int, ir.Value]:
        """What the loop has left in sums and stacks, by position."""
        found: dict[int, ir.Value] = {}
        for position, (reducer, pieces) in self.sums.items():
            own, results = results[: len(pieces.values)], results[len(pieces.values) :]
            start, value = self.loop.operands[position], pieces.join(own)
            is_neutral = reducer in NEUTRAL and _splat(start) == NEUTRAL[reducer]
            found[position] = value if is_neutral else combine(reducer, start, value)
        for position, value in zip(self.found.stacks, results, strict=True):
            found[position] = stablehlo.ReshapeOp(self.loop.operands[position].type, value).result
        return found

    def _unchanged(self, position: int) -> ir.Value:
        if position in self.found.kept:
            return self.loop.operands[position]
        numbers = self.found.scalars[position]
        return scalar_constant(numbers[-1], self.loop.operands[position].type)

    def _write_chains(self) -> dict[int, tuple[ir.Value, ir.Value]]:
        """position -> what a chain is in each part, along a new dimension 0, and behind the last.
        They are written out before the loop, where each part finds its own."""
        chains = sorted(self.found.chains)
        ops = [view.operation for view in self.body.operations]
        yielded = list(terminator(self.body).operands)
        needed = ancestors(ops, [yielded[k] for k in chains])
        state = {k: self.loop.operands[k] for k in chains}
        seen: dict[int, list[ir.Value]] = {k: [] for k in chains}
        for number in range(self.found.count if chains else 0):
            values = {self.body.arguments[k]: value for k, value in state.items()}
            values.update((self.body.arguments[k], self.loop.operands[k]) for k in self.found.kept)
            values.update(
                (self.body.arguments[k], scalar_constant(each[number], self.loop.operands[k].type))
                for k, each in self.found.scalars.items()
                if k not in self.found.kept
            )
            for op in needed:
                self._copy(op, values)
            for k in chains:
                seen[k].append(state[k])
                state[k] = values.get(yielded[k], yielded[k])
        return {k: (_stacked(seen[k]), state[k]) for k in chains}


def _stacked(values: Sequence[ir.Value]) -> ir.Value:
    """Along a new dimension 0."""
    tensor = ir.RankedTensorType(values[0].type)
    row = ir.RankedTensorType.get([1, *tensor.shape], tensor.element_type)
    return stablehlo.ConcatenateOp([stablehlo.ReshapeOp(row, v).result for v in values], 0).result


def _splat(value: ir.Value) -> object:
    """The element of which all of a value consists, or None."""
    while (op := defining(value)) is not None and op.name in _SPREADING:
        value = op.operands[0]
    return read_splat(op) if op is not None and op.name == "stablehlo.constant" else None


def _in_rows(value: ir.Value, count: int) -> tuple[ir.Value, Split]:
    split = Split(0, 1, count)
    return split_blocks(value, split, count), split
