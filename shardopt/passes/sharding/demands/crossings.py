"""Which values of a staged module go from one mesh to another, as they are or under other names.

    %h = mpmd.fragment … { … mpmd.return %v }        %v goes where %h goes
    return %h   // of @microbatch                    where the call's result goes, and the loop's
    %t = mpmd.transfer %r#0                          %r#0, %h, %v, and the sum it begins with

All names of a value on one mesh have one sharding, and the two sides of a transfer have even tiles:
meshes of several sizes would pad a value each in its own way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jaxlib.mlir import ir

from shardopt.dialect.donation import read_donation
from shardopt.dialect.mpmd import TOPOLOGY
from shardopt.ir.rewriting import operations, terminator


def crossing_values(main: ir.Operation, functions: Mapping[str, ir.Operation]) -> set[ir.Value]:
    """All names of what a transfer sends or brings, in all `functions` of a module, `main` among
    them. None of a plain module."""
    if TOPOLOGY not in main.attributes:
        return set()
    names: dict[ir.Value, list[ir.Value]] = {}
    for first, second in _same(main, functions):
        names.setdefault(first, []).append(second)
        names.setdefault(second, []).append(first)
    pending = [
        value
        for function in functions.values()
        for transfer in operations(function, ("mpmd.transfer",))
        for value in (transfer.operands[0], transfer.results[0])
    ]
    crossing = set(pending)
    while pending:
        new = [name for name in names.get(pending.pop(), ()) if name not in crossing]
        crossing.update(new)
        pending += new
    return crossing


def _same(
    main: ir.Operation, functions: Mapping[str, ir.Operation]
) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Pairs of names of one value, or of values that are to have one sharding."""
    boundaries = ("mpmd.fragment", "mpmd.for", "mpmd.call")
    for op in (op for each in functions.values() for op in operations(each, boundaries)):
        body = op
        if op.name == "mpmd.call":
            body = functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
        block = body.regions[0].blocks[0]
        # A loop counts its iterations behind what it carries.
        yield from zip(op.operands, block.arguments, strict=False)
        yield from zip(op.results, terminator(block).operands, strict=True)
        if op.name == "mpmd.for":
            yield from zip(op.operands, op.results, strict=True)
    block = main.regions[0].blocks[0]
    for argument, result in read_donation(main).items():
        yield block.arguments[argument], terminator(block).operands[result]
