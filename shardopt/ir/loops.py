"""Loops of static length: how often a `stablehlo.while` runs, and its body written out that many
times.

Written-out iterations know their counter, so everything computed from it folds on the way: a
dynamic_slice of stacked weights becomes a slice, reading back what an earlier iteration stacked
becomes that value itself, and the chain of dynamic_update_slices that stacks results becomes one
concatenate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.ir import shapes
from shardopt.ir.rewriting import (
    defining,
    replace_op,
    shape_of,
    splice_block,
    terminator,
)
from shardopt.ir.scalars import evaluate, is_foldable, scalar_constant

WHILE = "stablehlo.while"
BRANCHES = ("stablehlo.case", "stablehlo.if")
CONTROL_FLOW = (WHILE, *BRANCHES)

# Iterations that are assumed of a loop whose number depends on data: enough that moving something
# out of the loop pays, and no more than that.
UNKNOWN_TRIPS = 10

# Iterations of a loop that are counted by running its counter.
MAX_COUNTED = 4096

# Of an operation that was written out: a number for each loop that it stood in, the outermost
# first, and its iteration there. Whoever unrolls takes it away (`take_iterations`).
_ITERATION = "shardopt.iteration"

# (loop, iteration), the outermost loop first; none for what never stood in a loop.
Iteration = tuple[tuple[int, int], ...]


def trip_count(loop: ir.Operation, limit: int) -> int | None:
    """How often the body runs, counted only up to `limit + 1`; None if that depends on more than
    constant scalars."""
    condition, body = (region.blocks[0] for region in loop.regions)
    stop = terminator(condition).operands[0]
    yielded = list(terminator(body).operands)
    state = {i: evaluate(loop.operands[i]) for i in _counters(stop, yielded, (condition, body))}
    for count in range(limit + 1):
        if any(number is None for number in state.values()):
            return None
        goes_on = evaluate(stop, {condition.arguments[i]: number for i, number in state.items()})
        if not goes_on:
            return None if goes_on is None else count
        bound = {body.arguments[i]: number for i, number in state.items()}
        state = {i: evaluate(yielded[i], bound) for i in state}
    return limit + 1


def scalar_values(loop: ir.Operation, count: int) -> dict[int, tuple[int, ...]]:
    """What carried integer scalars are in each of `count` iterations, and behind the last, by
    position; of those that this can be told of."""
    body = loop.regions[1].blocks[0]
    yielded = list(terminator(body).operands)
    state = {k: evaluate(operand) for k, operand in enumerate(loop.operands)}
    values = {k: [number] for k, number in state.items() if number is not None}
    for _ in range(count):
        bound = {body.arguments[k]: numbers[-1] for k, numbers in values.items()}
        later = {k: evaluate(yielded[k], bound) for k in values}
        values = {
            k: [*numbers, number]
            for k, numbers in values.items()
            if (number := later[k]) is not None
        }
    return {k: tuple(numbers) for k, numbers in values.items()}


def _counters(stop: ir.Value, yielded: Sequence[ir.Value], blocks: Sequence[ir.Block]) -> list[int]:
    """Positions of the carried scalars that decide when the loop stops, directly or through other
    ones."""
    positions: set[int] = set()
    work: list[ir.Value] = [stop]
    seen: set[ir.Value] = set()
    while work:
        value = work.pop()
        if value in seen:
            continue
        seen.add(value)
        op = defining(value)
        if op is not None:
            work.extend(op.operands if is_foldable(op) else ())
            continue
        argument: ir.BlockArgument = ir.BlockArgument(value)
        if argument.owner in blocks and argument.arg_number not in positions:
            positions.add(argument.arg_number)
            work.append(yielded[argument.arg_number])
    return sorted(positions)


def take_iterations(ops: Sequence[ir.Operation]) -> list[Iteration]:
    """In which iterations of written-out loops `ops` stood. They forget it."""
    taken = []
    for op in ops:
        taken.append(_iteration(op))
        if taken[-1]:
            del op.attributes[_ITERATION]
    return taken


def _iteration(op: ir.Operation) -> Iteration:
    if _ITERATION not in op.attributes:
        return ()
    numbers = list(ir.DenseI64ArrayAttr(op.attributes[_ITERATION]))
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


class Unroller:
    """Writes out loops before the places where they stood. `choose` says how often a loop runs, or
    None to keep it."""

    def __init__(self, choose: Callable[[ir.Operation], int | None]) -> None:
        self.choose = choose
        self.unrolled = 0
        self._constants: dict[tuple[ir.Block, ir.Type, int], ir.Value] = {}

    def visit(self, ops: Sequence[ir.Operation]) -> None:
        """Unroll the chosen loops among `ops` and inside of them; outer loops first, so inner ones
        see the counters."""
        for op in ops:
            if op.name == "stablehlo.while" and self._try_unroll(op):
                continue
            for region in op.regions:
                for block in region.blocks:
                    self.visit([inner.operation for inner in block.operations])

    def _try_unroll(self, loop: ir.Operation) -> bool:
        count = self.choose(loop)
        if count is None:
            return False
        self.unrolled += 1
        carried, loop_number = list(loop.operands), self.unrolled
        for number in range(count):
            copy = loop.clone(ip=False)
            body, terminator = splice_block(copy.regions[1].blocks[0], carried, loop)
            _mark(body, (*_iteration(loop), (loop_number, number)))
            self._fold_all(body)
            carried = list(terminator.operands)
            copy.erase()
        with ir.InsertionPoint(loop), loop.location:
            results = [_stacked(value) for value in carried]
        replace_op(loop, results, carried)
        return True

    def _fold_all(self, ops: Sequence[ir.Operation]) -> None:
        """Simplify written-out operations in program order, and unroll the loops among them."""
        for op in ops:
            if op.name == "stablehlo.while" and self._try_unroll(op):
                continue
            if op.name in ("stablehlo.case", "stablehlo.if") and self._take_branch(op):
                continue
            with ir.InsertionPoint(op), op.location:
                folded = self._fold(op)
            if folded is not None:
                replace_op(op, [folded])
                continue
            for region in op.regions:
                for block in region.blocks:
                    self.visit([inner.operation for inner in block.operations])

    def _fold(self, op: ir.Operation) -> ir.Value | None:
        if is_foldable(op):
            number = evaluate(op.results[0])
            return None if number is None else self._constant(op, number)
        if op.name == "stablehlo.select":
            predicate = evaluate(op.operands[0])
            return None if predicate is None else op.operands[1 if predicate else 2]
        if op.name == "stablehlo.reshape":
            return shapes.simplified(op)
        if op.name == "stablehlo.dynamic_slice":
            return _static_slice(op)
        return None

    def _take_branch(self, op: ir.Operation) -> bool:
        """Replace a case or if by the branch that its now known index selects."""
        index = evaluate(op.operands[0])
        if index is None:
            return False
        if op.name == "stablehlo.if":
            index = 0 if index else 1
        elif not 0 <= index < len(op.regions):
            index = len(op.regions) - 1  # out of bounds means the last branch
        body, terminator = splice_block(op.regions[index].blocks[0], (), op)
        self._fold_all(body)
        replace_op(op, list(terminator.operands))
        return True

    def erase_unused_constants(self) -> None:
        for value in self._constants.values():
            if not any(True for _ in value.uses):
                ir.OpResult(value).owner.operation.erase()
        self._constants.clear()

    def _constant(self, op: ir.Operation, number: int) -> ir.Value:
        """One constant per number, at the head of the block, where it serves every iteration."""
        block = op.block
        key = (block, op.results[0].type, number)
        if key not in self._constants:
            with ir.InsertionPoint.at_block_begin(block):
                self._constants[key] = scalar_constant(number, op.results[0].type)
        return self._constants[key]


def _mark(ops: Sequence[ir.Operation], iteration: Iteration) -> None:
    numbers = [number for pair in iteration for number in pair]
    for op in ops:
        op.attributes[_ITERATION] = ir.DenseI64ArrayAttr.get(numbers, op.context)


def _static_slice(op: ir.Operation) -> ir.Value | None:
    source, *indices = op.operands
    sizes = shape_of(op.results[0])
    starts = shapes.known_start(indices, shape_of(source), sizes)
    if starts is None:
        return None
    return shapes.slice_(
        source, starts, [start + size for start, size in zip(starts, sizes, strict=True)]
    )


def _stacked(value: ir.Value) -> ir.Value:
    """A value written piece by piece along one dimension, each place once, as the concatenate of
    the pieces."""
    pieces: dict[int, ir.Value] = {}
    dim = -1
    current = value
    while (op := defining(current, "stablehlo.dynamic_update_slice")) is not None:
        starts, update = shapes.update_start(op), op.operands[1]
        partial = [
            d
            for d, sizes in enumerate(zip(shape_of(value), shape_of(update), strict=True))
            if len({*sizes}) > 1
        ]
        if not partial and not pieces:
            return update
        if (
            starts is None
            or len(partial) != 1
            or dim not in (-1, partial[0])
            or starts[partial[0]] in pieces
        ):
            break
        dim = partial[0]
        pieces[starts[dim]] = update
        current = op.operands[0]
    ordered = sorted(pieces)
    ends = [start + shape_of(pieces[start])[dim] for start in ordered]
    if not ordered or [0, *ends] != [*ordered, shape_of(value)[dim]]:
        return value
    return stablehlo.ConcatenateOp([pieces[start] for start in ordered], dim).result
