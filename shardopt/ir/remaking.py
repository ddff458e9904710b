"""Copies of cheap values (constants, iotas, broadcast scalars) for readers that want them in another sharding.

    %c = stablehlo.constant dense<0.0> : tensor<8x8xf32>           %c = … {mhlo.sharding = "{devices=[2,1]<=[2]}"}
    %1 = stablehlo.add %x, %c   (wants rows split)          =>     %d = … {mhlo.sharding = "{devices=[1,2]<=[2]}"}
    %2 = stablehlo.add %y, %c   (wants columns split)              %1 = stablehlo.add %x, %c ; %2 = stablehlo.add %y, %d

With one value for both, the partitioner would move data that each device can make for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from jaxlib.mlir import ir

from shardopt.cost.mesh import Sharding
from shardopt.ir.graph import GraphReader


def make_for_readers(
    reader: GraphReader, made_anywhere: Set[int], wanted: Mapping[int, tuple[Sharding, ...]]
) -> dict[ir.Operation, Sharding]:
    """Insert the copies and return them with their shardings; originals that lose all readers disappear.

    `wanted[k]` are the operand shardings of operation k of the reader. Removed operations stay in `reader.handles`, which
    must not be used afterwards.
    """
    makers = {op.results[0]: handle for op, handle in zip(reader.ops, reader.handles, strict=True) if op.results}
    copies: dict[tuple[int, Sharding], ir.Operation] = {}
    for number, (op, handle) in enumerate(zip(reader.ops, reader.handles, strict=True)):
        for position, (tensor, sharding) in enumerate(zip(op.operands, wanted[number], strict=True)):
            if tensor in made_anywhere and tensor in makers:
                copy = copies.get((tensor, sharding))
                if copy is None:
                    copy = copies[tensor, sharding] = makers[tensor].clone(ip=ir.InsertionPoint(makers[tensor]))
                handle.operands[position] = copy.results[0]
    return {copy: sharding for (_, sharding), copy in copies.items()}
