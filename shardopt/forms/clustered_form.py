"""What a module looks like after the cluster phase: the microbatched form, every operation in a
layer.

    stablehlo.dot_general %x, %w {shardopt.layer = 2 : i64}

A layer is a number from 0, the same for an operation, its backward and the update of what it reads;
arguments of `@main` have one, too. -1 marks operations that belong to no layer: whoever reads their
result recomputes it. In the body they read only each other, captured values and the microbatch
index: nothing that would have to be sent with each microbatch."""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries
from shardopt.dialect.donation import argument_attributes, donation_faults
from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.parts import part_faults
from shardopt.dialect.program import StepProgram, read_program
from shardopt.extract.op_graph import free_values
from shardopt.forms.imported_form import Violation
from shardopt.forms.microbatch_rows import call_violations, row_violations
from shardopt.graph.op_graph import SHARED
from shardopt.ir.rewriting import defining


def violations(module: ir.Module) -> Iterator[Violation]:
    """All departures from the form: of operations (body, prologue, epilogue), arguments, and of
    layers as a whole."""
    try:
        program = read_program(module)
    except ValueError as error:
        yield Violation(module.operation, str(error))
        return
    if misshapen := list(call_violations(program)):
        yield from misshapen  # what is carried cannot be followed
        return
    for fault in (*donation_faults(program.main), *part_faults(program.main)):
        yield Violation(program.main, fault)
    yield from row_violations(program)
    layers = [
        (op, op.attributes.get(LAYER, None), SHARED, f"'{op.name}'") for op in _operations(program)
    ]
    layers += [
        (program.main, entries(attributes).get(LAYER), 0, f"argument {number} of '@main'")
        for number, attributes in enumerate(argument_attributes(program.main))
    ]
    used = set()
    for op, attribute, least, where in layers:
        if attribute is None or not _is_i64(attribute):
            yield Violation(
                op, f"expected '{LAYER}' of type i64 on {where}, found {attribute or 'none'}"
            )
        elif (layer := ir.IntegerAttr(attribute).value) < least:
            yield Violation(op, f"expected a layer of at least {least} on {where}, found {layer}")
        else:
            used.add(layer)
    in_order = sorted(used - {SHARED})
    missing = next((k for k, layer in enumerate(in_order) if layer != k), None)
    if missing is not None:
        yield Violation(
            program.loop,
            f"expected operations in every layer up to {in_order[-1]}, found none in {missing}",
        )
    yield from _of_shared(program)


def _operations(program: StepProgram) -> list[ir.Operation]:
    return [*program.body_ops, *program.prologue, *program.epilogue]


def _is_i64(attribute: ir.Attribute) -> bool:
    return isinstance(attribute, ir.IntegerAttr) and str(attribute.type) == "i64"


def _of_shared(program: StepProgram) -> Iterator[Violation]:
    """A shared operation of the body that read a layer's value would drag it to every stage, each
    microbatch."""
    carried = {program.body_block.arguments[number] for number, _ in program.carried}
    for op in program.body_ops:
        if _layer(op) != SHARED:
            continue
        for value in (*op.operands, *free_values(op)):
            producer = defining(value)
            if producer is not None and _layer(producer) != SHARED:
                yield _tied(op, f"'{producer.name}' of layer {_layer(producer)}")
            elif value in carried:
                yield _tied(op, f"accumulator {ir.BlockArgument(value).arg_number} of the body")


def _tied(op: ir.Operation, layered: str) -> Violation:
    return Violation(
        op,
        f"expected '{op.name}', which has no layer, to read none either, "
        f"found it reading {layered}",
    )


def _layer(op: ir.Operation) -> int | None:
    attribute = op.attributes.get(LAYER, None)
    return ir.IntegerAttr(attribute).value if attribute is not None and _is_i64(attribute) else None
