"""Which results of the loop are gradients of which values that it reads.

    %w0 = slice %stack [0:1, …]      @microbatch(… %w0 …)
    %new = subtract %stack, (concatenate (reshape %loop#3), …)      loop result 3 is that of %w0

A result of `@main` that is computed, through values with as many elements, from an argument and
from loop results is that argument's update. Values of other sizes (norms, schedules) tell nothing.
Of weights that stand in one argument, rows are matched: the body reads a slice of them, and its
gradient comes back in a concatenation, or padded with zeros."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from jaxlib.mlir import ir

from shardopt.dialect.donation import read_donation
from shardopt.dialect.program import StepProgram
from shardopt.extract.rows import (
    CONCATENATE,
    Rows,
    Source,
    padded_rows,
    pieces,
    source_of,
)
from shardopt.ir.loops import BRANCHES
from shardopt.ir.rewriting import defining, shape_of, terminator


def gradients_of(program: StepProgram) -> dict[int, list[int]]:
    """loop result -> arguments of `@microbatch` (a weight, its casts) whose gradient it
    accumulates.

    The body of a step in mixed precision reads a copy in half precision, which is made anew from an
    argument in full precision: there the result tells by the argument that it replaces."""
    captured_from: dict[Source, list[int]] = {}
    for k, value in program.captured.items():
        captured_from.setdefault(source_of(value), []).append(k)
    weights_of: dict[int, list[int]] = {}
    replaced = {
        result: program.main_block.arguments[a] for a, result in read_donation(program.main).items()
    }
    for k, returned in enumerate(program.returned):
        # Scalars tell nothing: losses, norms and step counts are all of one size.
        if _elements(returned) <= 1:
            continue
        arguments, sums = _origins(returned, program)
        for rows, numbers in sums.items():
            weights = [captured_from[a, rows] for a in arguments if (a, rows) in captured_from]
            if not weights and k in replaced:
                weights = [captured_from.get((replaced[k], rows), [])]
            if len(weights) == 1 and weights[0]:
                weights_of.update((number, weights[0]) for number in sorted(numbers))
    return weights_of


def _origins(
    value: ir.Value, program: StepProgram
) -> tuple[list[ir.Value], dict[Rows | None, set[int]]]:
    """Arguments of `@main` that `value` depends on through values of equal size, and loop results:
    behind None those that it depends on so, behind rows those that make these rows of it."""
    arguments: list[ir.Value] = []
    sums: dict[Rows | None, set[int]] = {}
    for current in _same_size(value, program.loop):
        producer = defining(current)
        if producer is None:
            arguments.append(current)
        elif producer == program.loop:
            number = ir.OpResult(current).result_number
            if not _collects_rows(program, number):
                sums.setdefault(None, set()).add(number)
        elif shape_of(current) == shape_of(value):
            for operand, rows in _joined(producer):
                if _elements(operand) <= 1:  # a row of one number tells no more than a scalar
                    continue
                for inner, numbers in _origins(operand, program)[1].items():
                    made = rows if inner is None else inner.of(rows)
                    if made is not None:
                        sums.setdefault(made, set()).update(numbers)
    return arguments, sums


def _same_size(value: ir.Value, loop: ir.Operation) -> Iterator[ir.Value]:
    """The value and all that it depends on, back to arguments and to results of the loop, through
    values of its size."""
    size, seen, stack = _elements(value), {value: None}, [value]
    while stack:
        yield (current := stack.pop())
        producer = defining(current)
        if producer is None or producer == loop:
            continue
        for operand in _operands(current, producer):
            if operand not in seen and _elements(operand) == size:
                seen[operand] = None
                stack.append(operand)


def _operands(value: ir.Value, producer: ir.Operation) -> list[ir.Value]:
    """What a value is computed from: of a conditional what its branches return for it."""
    if producer.name not in BRANCHES:
        return list(producer.operands)
    number = ir.OpResult(value).result_number
    return [terminator(region.blocks[0]).operands[number] for region in producer.regions]


def _joined(op: ir.Operation) -> Iterator[tuple[ir.Value, Rows]]:
    """The operands of which an operation makes rows of its result: pieces that it puts one behind
    the other, or one that stands between zeros."""
    if op.name == CONCATENATE:
        yield from pieces(op)
    elif (rows := padded_rows(op)) is not None:
        yield op.operands[0], rows


def _collects_rows(program: StepProgram, number: int) -> bool:
    """Whether each microbatch writes rows of its own into a loop result, such as those of a cache;
    a gradient sums over all rows."""
    argument, result = program.carried[number]
    maker = defining(program.body_result(result), "stablehlo.dynamic_update_slice")
    return maker is not None and maker.operands[0] == program.body_block.arguments[argument]


def _elements(value: ir.Value) -> int:
    return prod(shape_of(value)) if isinstance(value.type, ir.RankedTensorType) else -1
