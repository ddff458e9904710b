"""The loop in which a program takes several training steps, one after the other: an epoch.

    %w:3 = while(%i = 0, %x = %xs, %v = %w) do {      %w, %xs: arguments of @main
      %d = gradient of %v and part %i of %x
      %n = %v - 0.1 * %d                              each iteration reads what the last has made
      return %i + 1, %x, %n }
    return %w#2                                       what comes out takes the place of %w

Stages and microbatches are those of one step: there is nothing to overlap from one iteration to the
next. A loop over time that hands a state of its own on looks alike, so this is said in errors only.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

from shardopt.dialect.batch import write_step_loop
from shardopt.extract.accumulation import PRODUCTS, ancestors, is_integer
from shardopt.extract.batch_arguments import called
from shardopt.extract.op_graph import reads
from shardopt.ir.diagnostics import position_of
from shardopt.ir.loops import WHILE
from shardopt.ir.rewriting import defining, operations, shape_of, terminator


def mark_step_loop(main: ir.Operation) -> None:
    """Tell later passes of the first loop that takes steps, if there is one."""
    block = main.regions[0].blocks[0]
    for loop in (view.operation for view in block.operations if view.operation.name == WHILE):
        for number in _handed_on(loop, set(terminator(block).operands)):
            write_step_loop(
                main,
                f"the loop at {position_of(loop)} hands {called(main, number)} on from one "
                "iteration to the next: if each iteration is a training step, plan one of them, "
                "and loop in Python",
            )
            return


def _handed_on(loop: ir.Operation, returned: set[ir.Value]) -> Iterator[int]:
    """The arguments that products of the loop read and each iteration replaces, from the first to
    what is returned."""
    block = loop.regions[1].blocks[0]
    body = [view.operation for view in block.operations]
    after = terminator(block).operands
    for before, first, last, result in zip(
        block.arguments, loop.operands, after, loop.results, strict=True
    ):
        if defining(first) is not None or before == last or result not in returned:
            continue
        if not shape_of(first) or is_integer(first.type):
            continue
        products = [op for op in ancestors(body, [last]) if operations(op, PRODUCTS)]
        read = [value for op in products for value in reads(op)]
        if before in read or any(before in reads(op) for op in ancestors(body, read)):
            yield ir.BlockArgument(first).arg_number
