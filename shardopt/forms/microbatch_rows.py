"""Whether the loop hands on what it carries, and runs as often as what it cuts into microbatches
has rows.

    mpmd.for … {iterations = 4 : ui32} … %i
      dynamic_slice %x, %i, …      where %x: tensor<4x…>, of which each iteration takes one row

StableHLO takes the last row again where the index is too large, and nothing where it is too small:
either way the step would be another one, without a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import is_mesh_tensor, parse_mesh_tensor
from shardopt.dialect.program import StepProgram, body_of
from shardopt.forms.imported_form import Violation
from shardopt.ir.rewriting import terminator

# A schedule has several tasks an iteration and stage, each of which is an object.
MAX_ITERATIONS = 1 << 16

_HANDS_ON = ("mpmd.transfer", "stablehlo.convert")


def call_violations(program: StepProgram) -> Iterator[Violation]:
    """The call hands on what the loop carries, and nothing but the call computes in the loop."""
    carried = list(program.loop_block.arguments)
    index = carried[-1].type
    if str(_tensor(index)) != "tensor<ui32>":
        yield Violation(
            program.loop,
            f"expected the loop to number microbatches in a tensor<ui32>, found {index}",
        )
    for op in body_of(program.loop_block):
        if op != program.call:
            yield Violation(op, f"expected only a call in the microbatch loop, found '{op.name}'")
    passed = Counter(program.call.operands)
    for number, argument in enumerate(carried[:-1]):
        if (times := passed[argument]) != 1:
            yield Violation(
                program.call,
                f"expected carried value {number} among the operands once, found it {times} times",
            )
    if list(terminator(program.loop_block).operands) != list(program.call.results):
        yield Violation(terminator(program.loop_block), "expected the results of the call in order")


def row_violations(program: StepProgram) -> Iterator[Violation]:
    """What reads another row than there is, or leaves rows unread."""
    number = program.index_argument
    index = None if number is None else program.body_block.arguments[number]
    yield from (
        Violation(*each)
        for each in row_faults(ir.SymbolTable(program.module.operation), program.loop, index)
    )


def row_faults(
    symbols: ir.SymbolTable, loop: ir.Operation, index: ir.Value | None
) -> Iterator[tuple[ir.Operation, str]]:
    """`index` numbers the microbatches in the body; None where nothing reads it."""
    count = ir.IntegerAttr(loop.attributes["iterations"]).value
    if not 1 <= count <= MAX_ITERATIONS:
        yield loop, f"expected 1 to {MAX_ITERATIONS} iterations, found {count}"
        return
    if index is None:
        return
    sliced = list(_sliced(index, symbols))
    # A loop of the model's own may read rows of something else, too.
    if any(rows == count for _, rows in sliced):
        return
    for op, rows in sliced:
        yield (
            op,
            f"expected a row for each of {count} microbatches, found '{op.name}' of one of {rows}",
        )


def _sliced(index: ir.Value, symbols: ir.SymbolTable) -> Iterator[tuple[ir.Operation, int]]:
    """(operation, extent) of what takes the row of that number, in fragments and functions, too."""
    for use in index.uses:
        op, number = use.owner.operation, use.operand_number
        if op.name in _HANDS_ON:
            yield from _sliced(op.results[0], symbols)
        elif op.name == "mpmd.fragment":
            yield from _sliced(op.regions[0].blocks[0].arguments[number], symbols)
        elif op.name == "mpmd.fragment_call":
            callee = symbols[ir.FlatSymbolRefAttr(op.attributes["callee"]).value].operation
            yield from _sliced(callee.regions[0].blocks[0].arguments[number], symbols)
        elif op.name == "stablehlo.dynamic_slice" and number:
            dim = number - 1
            if ir.DenseI64ArrayAttr(op.attributes["slice_sizes"])[dim] == 1:
                yield op, _extent(op.operands[0].type, dim)


def _extent(type_: ir.Type, dim: int) -> int:
    return int(ir.RankedTensorType(_tensor(type_)).shape[dim])


def _tensor(type_: ir.Type) -> ir.Type:
    return parse_mesh_tensor(type_).tensor if is_mesh_tensor(type_) else type_
