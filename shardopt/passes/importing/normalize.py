"""Bring shape operations into the one form that sharding rules and the SPMD partitioner handle
well.

Needs: nothing; does more after canonicalize and cse. Holds afterwards:

* no broadcast stretches a dimension of size 1: it would put the sharding on a hidden value of that
  size, which costs extra collectives or fails to compile;
* no reshape or transpose that undoes another, no slice of a concatenate or a padding that one
  operand answers alone;
* no matrix product without batch dimensions reads a transpose that only says which of its
  dimensions are contracted: a transposed weight, which no fragment of a pipeline has to keep then;
* no collective among groups of one device, which is what programs traced for a single device
  contain.

    %1 = stablehlo.broadcast_in_dim %b, dims = [1] : (8) -> 1x8
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (1x8) -> 4x8
 =>
    %2 = stablehlo.broadcast_in_dim %b, dims = [1] : (8) -> 4x8

Operations that carry a user's sharding or frontend attributes stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.ir.rewriting import has_user_attribute, operations, replace_op
from shardopt.ir.shapes import product_of_sources, simplified
from shardopt.passes.base import Pass, PassContext

_PRODUCT = "stablehlo.dot_general"

_SHAPE_OPS = (
    "stablehlo.broadcast_in_dim",
    "stablehlo.reshape",
    "stablehlo.slice",
    "stablehlo.transpose",
)

# Collectives that hand their operands on unchanged when every group has one member.
_COLLECTIVES = (
    "stablehlo.all_gather",
    "stablehlo.all_reduce",
    "stablehlo.all_to_all",
    "stablehlo.collective_broadcast",
    "stablehlo.reduce_scatter",
)


def _is_lonely(op: ir.Operation) -> bool:
    """Whether each replica group of a collective has one member (a table of shape groups x 1)."""
    groups = op.attributes["replica_groups"]
    return (
        isinstance(groups, ir.DenseElementsAttr) and ir.RankedTensorType(groups.type).shape[1] == 1
    )


def _normal_form(op: ir.Operation) -> list[ir.Value] | None:
    """What replaces the results of `op`, or None if it stays."""
    if has_user_attribute(op):
        return None
    if op.name in _COLLECTIVES:
        same = [operand.type for operand in op.operands] == [result.type for result in op.results]
        return list(op.operands) if same and _is_lonely(op) else None
    if not ir.RankedTensorType(op.operands[0].type).has_static_shape:
        return None
    value = product_of_sources(op) if op.name == _PRODUCT else simplified(op)
    return None if value is None else [value]


@dataclass(frozen=True)
class Normalize(Pass):
    name = "shardopt-normalize"
    summary = (
        "fold reshapes, broadcasts and transposed weights, and drop stretched unit dimensions "
        "and one-device collectives"
    )

    def run(self, module: ir.Module, pm: PassContext) -> None:
        rewritten = 0
        # Producers come first, so their normal form is there when a consumer looks at them: one
        # sweep is enough.
        for op in operations(module.operation, (*_SHAPE_OPS, _PRODUCT, *_COLLECTIVES)):
            with ir.InsertionPoint(op), op.location:
                values = _normal_form(op)
            if values is not None:
                replace_op(op, values)
                rewritten += 1
        pm.statistic("rewritten", rewritten)
