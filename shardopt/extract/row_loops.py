"""Loops in which each row ends by itself, as `jax.vmap` makes them of a `lax.while_loop`.

    while(%x)
      cond { return any(p(%x)) }                  as long as some row goes on
      do   { return select(p(%x), f(%x), %x) }    rows that do not stay as they are

Once a row has ended, more iterations change nothing of it. So a part of the rows may run as often
as its own rows need."""

from __future__ import annotations

from jaxlib.mlir import ir

from shardopt.extract.op_graph import read_reducer
from shardopt.extract.repeated_ops import Numbering
from shardopt.ir.rewriting import defining, shape_of, terminator


def ends_row_by_row(loop: ir.Operation) -> bool:
    """Whether the body of a `stablehlo.while` keeps what it carries wherever the condition, a
    disjunction over all elements of one value, does not hold."""
    condition, body = (region.blocks[0] for region in loop.regions)
    running = _any_of(terminator(condition).operands[0])
    if running is None:
        return False
    numbering = Numbering()
    for first, second in zip(condition.arguments, body.arguments, strict=True):
        numbering.number[second] = numbering.of(first)
    for block in (condition, body):
        for view in list(block.operations)[:-1]:
            numbering.add(view.operation)
    return all(
        value == argument or _is_kept(value, argument, numbering.of(running), numbering)
        for value, argument in zip(terminator(body).operands, body.arguments, strict=True)
    )


def _any_of(value: ir.Value) -> ir.Value | None:
    """Of what a flag is the disjunction, over all elements."""
    op = defining(value, "stablehlo.reduce")
    if op is None or len(op.results) > 1 or shape_of(value) or read_reducer(op) != "or":
        return None
    return op.operands[0]


def _is_kept(value: ir.Value, argument: ir.Value, running: int, numbering: Numbering) -> bool:
    op = defining(value, "stablehlo.select")
    if op is None or op.operands[2] != argument:
        return False
    flags = op.operands[0]
    while (spread := defining(flags, "stablehlo.broadcast_in_dim")) is not None:
        flags = spread.operands[0]
    return numbering.of(flags) == running
