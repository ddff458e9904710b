"""Values with uneven tiles, made even at the border of a fragment.

    mpmd.fragment … (%w) (%a: tensor<10x8xf32>) {
      %0 = stablehlo.negate %a
      return %0
 => (10 rows over 4 devices: tiles of 3)
    mpmd.fragment … (%w) (%p: tensor<12x8xf32>) {
      %a = stablehlo.slice %p [0:10, 0:8]
      %0 = stablehlo.negate %a
      %z = stablehlo.pad %0, 0, low = [0, 0], high = [2, 0]
      return %z

Operations of `mpmd` accept full tiles alone. Outside of fragments such a value has its padding, in
its type; XLA's tiles of both are the same, so that slice and pad move nothing."""

from __future__ import annotations

from collections.abc import Mapping

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import parse_mesh_tensor
from shardopt.dialect.strategy import OpStrategy, write_strategy
from shardopt.ir.padding import with_padding, without_padding
from shardopt.ir.rewriting import defining, terminator
from shardopt.mesh.mesh import Sharding


def pad_borders(fragment: ir.Operation, shardings: Mapping[ir.Value, Sharding]) -> int:
    """Let a fragment take and return what the types outside of it say, with strategies on what is
    inserted; how many operations now stand before its own. `shardings` has those of its values."""
    block = fragment.regions[0].blocks[0]
    first, sliced = block.operations[0].operation, 0
    for argument, operand in zip(block.arguments, fragment.operands, strict=True):
        padded, inner = parse_mesh_tensor(operand.type).tensor, ir.RankedTensorType(argument.type)
        if padded != inner:
            argument.set_type(padded)
            with ir.InsertionPoint(first), fragment.location:
                _enter(argument, inner, shardings[argument])
            sliced += 1
    end = terminator(block)
    for number, result in enumerate(fragment.results):
        padded, value = parse_mesh_tensor(result.type).tensor, end.operands[number]
        if padded != value.type:
            with ir.InsertionPoint(end), fragment.location:
                end.operands[number] = _leave(value, padded, shardings[value])
    return sliced


def _enter(argument: ir.Value, inner: ir.RankedTensorType, sharding: Sharding) -> None:
    """Give the readers of an argument what is not padding."""
    inside = without_padding(argument, inner.shape)
    cut = _maker(inside)
    write_strategy(cut, OpStrategy.plain([sharding], [sharding]))
    argument.replace_all_uses_except(inside, cut)


def _leave(value: ir.Value, padded: ir.RankedTensorType, sharding: Sharding) -> ir.Value:
    """The value with padding behind it."""
    scalar, outside = Sharding.replicated(0), with_padding(value, padded.shape)
    pad = _maker(outside)
    write_strategy(_maker(pad.operands[1]), OpStrategy.plain([], [scalar]))
    write_strategy(pad, OpStrategy.plain([sharding, scalar], [sharding]))
    return outside


def _maker(value: ir.Value) -> ir.Operation:
    op = defining(value)
    assert op is not None
    return op
