"""A conditional that goes on with sums over the batch, as two: one for the sums, and one for what
is made of them.

    %w = case(%turn) {                       %s = case(%turn) { %g = gradient %x, %p
      %g = gradient %x, %p                                      return %g }, { return zeros }
      %u = update %p, %g              =>     %w = case(%turn) { %u = update %p, %s
      return %u                                                 return %u }, { return %p }
    }, { return %p }

The first stands in the microbatch loop, where it is accumulated, the second behind it. An optimizer
that is called in every other step is one of those, and so are measurements of the curvature."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from shardopt.ir.rewriting import terminator
from shardopt.ir.splats import splat_constant
from shardopt.passes.importing.branches import drop_unread, yield_values


def split_conditional(op: ir.Operation, sums: Sequence[Sequence[ir.Value]]) -> None:
    """Put a conditional in front of `op` that yields `sums`, values of each of its regions, and let
    `op` read them there."""
    first = _sums_alone(op, sums)
    results = iter(first.results)
    for region, values in zip(op.regions, sums, strict=True):
        for value in values:
            value.replace_all_uses_with(next(results))
        drop_unread(region.blocks[0])


def _sums_alone(op: ir.Operation, sums: Sequence[Sequence[ir.Value]]) -> ir.Operation:
    """A copy in front of `op`: a region yields its sums, and zeros for those of all others."""
    types = [value.type for values in sums for value in values]
    with ir.InsertionPoint(op):
        whole = op.clone()
        attributes = {name: op.attributes[name] for name in op.attributes}
        first = ir.Operation.create(
            op.name, types, list(op.operands), attributes, regions=len(op.regions), loc=op.location
        )
    for number, (old, copied, new) in enumerate(
        zip(op.regions, whole.regions, first.regions, strict=True)
    ):
        pairs = zip(old.blocks[0].operations, copied.blocks[0].operations, strict=True)
        copies: dict[ir.Value, ir.Value] = {
            value: copy
            for one, other in pairs
            for value, copy in zip(one.results, other.results, strict=True)
        }
        block = copied.blocks[0]
        block.append_to(new)
        with ir.InsertionPoint(terminator(block)), op.location:
            yielded = [
                copies[value] if owner == number else splat_constant(value.type, 0)
                for owner, values in enumerate(sums)
                for value in values
            ]
        yield_values(block, yielded)
    whole.erase()
    return first
