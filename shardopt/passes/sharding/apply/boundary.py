"""Where a result of `@main` comes from: the operand of a terminator that makes it, or a value that
no operation makes.

In a staged module results are followed through `mpmd.for` and `mpmd.call` to the fragment of the
loop body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import is_mesh_tensor
from shardopt.ir.rewriting import defining, terminator


class ReturnedOperand(NamedTuple):
    """`terminator.operands[operand]`, in a block of StableHLO operations."""

    terminator: ir.Operation
    operand: int

    @property
    def value(self) -> ir.Value:
        return self.terminator.operands[self.operand]


def place_of_result(
    main: ir.Operation, number: int, callees: Mapping[str, ir.Operation]
) -> ReturnedOperand | ir.Value:
    """The place that makes a result of `@main`; the value itself when no operation of its mesh
    makes it (an argument, what another mesh sent)."""
    last = terminator(main.regions[0].blocks[0])
    value = last.operands[number]
    if not is_mesh_tensor(value.type):
        return ReturnedOperand(last, number)
    maker = defining(value)
    while maker is not None and maker.name != "mpmd.transfer":
        operand = ir.OpResult(value).result_number
        last = terminator(_body(maker, callees))
        if maker.name == "mpmd.fragment":
            return ReturnedOperand(last, operand)
        value = last.operands[operand]
        maker = defining(value)
    return value


def _body(op: ir.Operation, callees: Mapping[str, ir.Operation]) -> ir.Block:
    if op.name == "mpmd.call":
        op = callees[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
    return op.regions[0].blocks[0]
