"""What a module looks like after the microbatch phase: prologue, a rolled loop over microbatches,
epilogue.

    func.func public @main(…) {
      prologue
      %r:k = mpmd.for (%init…) {iterations = B : ui32} (%acc…, %i : tensor<ui32>) {
        %n:k = mpmd.call @microbatch(%captured…, %acc…, %i) {call_counter = 0 : ui32}
        mpmd.return %n…
      }
      epilogue }
    func.func private @microbatch(captured…, accumulators…, index) -> accumulators

Types are plain tensors, equal for the k-th init, accumulator and result; every captured value is
read by the body."""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

from shardopt.dialect.donation import donation_faults
from shardopt.dialect.program import StepProgram, read_program
from shardopt.forms.figures import batch_faults
from shardopt.forms.imported_form import MAIN, Violation
from shardopt.forms.microbatch_rows import call_violations, row_violations
from shardopt.ir.rewriting import functions, operations, symbol_name

MICROBATCH = "microbatch"

# The frame of the loop; each occurs once.
_FRAME = frozenset({"mpmd.call", "mpmd.for", "mpmd.return"})
_CALLS = frozenset({"func.call", "stablehlo.composite"})


def violations(module: ir.Module) -> Iterator[Violation]:
    """All departures from the form; one that hides the loop is reported alone."""
    try:
        program = read_program(module)
    except ValueError as error:
        yield Violation(module.operation, str(error))
        return
    of_call = [*_of_call(program), *call_violations(program)]
    yield from of_call
    yield from _of_functions(program)
    for fault in (*donation_faults(program.main), *batch_faults(program.main)):
        yield Violation(program.main, fault)
    if not of_call and len(program.call.operands) == len(program.body_block.arguments):
        yield from _of_captures(program)
        yield from row_violations(program)
    for op in operations(module.operation):
        if op.name in _CALLS or (op.name.startswith("mpmd.") and op.name not in _FRAME):
            yield Violation(
                op, f"expected StableHLO operations and one microbatch loop, found '{op.name}'"
            )


def _of_functions(program: StepProgram) -> Iterator[Violation]:
    name = symbol_name(program.body)
    if name != MICROBATCH:
        yield Violation(program.call, f"expected the loop to call '@{MICROBATCH}', found '@{name}'")
    for function in functions(program.module):
        if symbol_name(function) not in (MAIN, name):
            extra = symbol_name(function)
            yield Violation(
                function,
                f"expected no functions but '@{MAIN}' and '@{MICROBATCH}', found '@{extra}'",
            )
    attributes = program.body.attributes
    if (
        "sym_visibility" not in attributes
        or ir.StringAttr(attributes["sym_visibility"]).value != "private"
    ):
        yield Violation(program.body, f"expected '@{name}' to be private, found it public")


def _of_call(program: StepProgram) -> Iterator[Violation]:
    carried = list(program.loop_block.arguments)
    passed = list(program.call.operands)
    if passed[len(passed) - len(carried) :] != carried:
        yield Violation(
            program.call,
            f"expected the last {len(carried)} operands to be the accumulators and the "
            "index in order",
        )
    if "call_counter" not in program.call.attributes:
        yield Violation(program.call, "expected attribute 'call_counter', found none")


def _of_captures(program: StepProgram) -> Iterator[Violation]:
    arguments: list[ir.Value] = list(program.body_block.arguments)
    for argument, result in program.carried:
        value = program.body_result(result)
        if value in arguments and value != arguments[argument]:
            yield Violation(
                program.body,
                f"expected result {result} to be computed, or the accumulator in its place, found "
                f"argument {arguments.index(value)}",
            )
    for k in program.captured:
        argument = program.body_block.arguments[k]
        if not any(True for _ in argument.uses):
            yield Violation(
                program.body,
                f"expected every captured value to be read, found argument {k} without use",
            )
