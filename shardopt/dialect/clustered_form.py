"""What a module looks like after the cluster phase: the microbatched form, every operation in a layer.

    stablehlo.dot_general %x, %w {shardopt.layer = 2 : i64}

A layer is a number from 0, the same for an operation, its backward and the update of what it reads; arguments of
`@main` have one, too. -1 marks operations that every layer computes for itself. In the body they read only each other
and the microbatch index; around the loop also arguments, and values small enough to send to every stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jaxlib.mlir import ir

from shardopt.dialect.donation import argument_attributes
from shardopt.dialect.imported_form import Violation
from shardopt.dialect.mpmd import LAYER
from shardopt.ir.graph import free_values, read_tensor
from shardopt.ir.program import Program, read_program
from shardopt.solve.layering import SHARED
from shardopt.solve.ownership import SMALL_BYTES


def violations(module: ir.Module) -> Iterator[Violation]:
    """All departures from the form in the order body, prologue, epilogue, arguments."""
    try:
        program = read_program(module)
    except ValueError as error:
        yield Violation(module.operation, str(error))
        return
    used: set[int] = set()
    for op in (*program.body_ops, *program.prologue, *program.epilogue):
        message = _of_layer(op.attributes.get(LAYER, None), SHARED, f"'{op.name}'")
        if message:
            yield Violation(op, message)
        else:
            used.add(ir.IntegerAttr(op.attributes[LAYER]).value)
    for number, attributes in enumerate(argument_attributes(program.main)):
        layer = attributes[LAYER] if LAYER in attributes else None
        message = _of_layer(layer, 0, f"argument {number} of '@main'")
        if message:
            yield Violation(program.main, message)
        else:
            used.add(ir.IntegerAttr(layer).value)
    yield from _of_numbers(program, used - {SHARED})
    yield from _of_shared(program)


def _of_layer(layer: ir.Attribute | None, least: int, where: str) -> str:
    if not isinstance(layer, ir.IntegerAttr) or str(layer.type) != "i64":
        return f"expected '{LAYER}' of type i64 on {where}, found {layer if layer is not None else 'none'}"
    if layer.value < least:
        return f"expected a layer of at least {least} on {where}, found {layer.value}"
    return ""


def _of_numbers(program: Program, used: set[int]) -> Iterator[Violation]:
    missing = sorted(set(range(max(used, default=-1) + 1)) - used)
    if missing:
        yield Violation(
            program.loop, f"expected layers 0 to {max(used)} to have operations, found none in layer {missing[0]}"
        )


def _of_shared(program: Program) -> Iterator[Violation]:
    index = program.index_argument
    free = () if index is None else (program.body_block.arguments[index],)
    for op in _shared(program.body_ops):
        for value in _reads(op):
            if value not in free and not _is_shared(value):
                yield Violation(op, f"expected shared '{op.name}' to read only shared values, found {_described(value)}")
    for op in _shared((*program.prologue, *program.epilogue)):
        for value in _reads(op):
            at_hand = _is_shared(value) or (isinstance(value, ir.BlockArgument) and value.owner == program.main_block)
            if not at_hand and read_tensor(value.type).size_bytes > SMALL_BYTES:
                yield Violation(
                    op,
                    f"expected shared '{op.name}' to read only shared values, arguments and values of at most "
                    f"{SMALL_BYTES} bytes, found {_described(value)}",
                )


def _shared(ops: Iterable[ir.Operation]) -> Iterator[ir.Operation]:
    return (op for op in ops if _layer(op) == SHARED)


def _reads(op: ir.Operation) -> list[ir.Value]:
    return [*op.operands, *free_values(op)]


def _layer(op: ir.Operation) -> int | None:
    return ir.IntegerAttr(op.attributes[LAYER]).value if LAYER in op.attributes else None


def _is_shared(value: ir.Value) -> bool:
    return not isinstance(value, ir.BlockArgument) and _layer(value.owner.operation) == SHARED


def _described(value: ir.Value) -> str:
    if isinstance(value, ir.BlockArgument):
        return f"argument {value.arg_number} ({value.type})"
    return f"a result of '{value.owner.operation.name}' in layer {_layer(value.owner.operation)} ({value.type})"
