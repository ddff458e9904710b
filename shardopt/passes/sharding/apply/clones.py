"""Copies of cheap values (constants, iotas, broadcast scalars) for readers that want them in
another sharding.

    %c = constant dense<0.0>                %c = constant … {mhlo.sharding = "{devices=[2,1]<=[2]}"}
    %1 = add %x, %c  (rows split)      =>   %d = constant … {mhlo.sharding = "{devices=[1,2]<=[2]}"}
    %2 = add %y, %c  (columns split)        %1 = add %x, %c ; %2 = add %y, %d

With one value for both, the partitioner would move data that each device can make for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from jaxlib.mlir import ir

from shardopt.extract.op_graph import GraphReader
from shardopt.mesh.mesh import Sharding


def clone_for_readers(
    reader: GraphReader,
    cheap_to_clone: Set[int],
    shardings: Mapping[int, Sharding],
    required: Mapping[int, Sequence[Sharding]],
) -> dict[ir.Value, Sharding]:
    """Insert the copies and hand them to their readers; the new values and their shardings.

    `required[k]` are the operand shardings of operation k of the reader. A reader in another
    fragment than the maker gets the value over the boundary and is left alone."""
    makers = {
        op.results[0]: (op.group, handle)
        for op, handle in zip(reader.ops, reader.handles, strict=True)
        if op.results
    }
    copies: dict[tuple[int, Sharding], ir.Value] = {}
    for number, (op, handle) in enumerate(zip(reader.ops, reader.handles, strict=True)):
        # Values that regions capture stand behind the operands, and are never cloned.
        for position, tensor in enumerate(op.operands[: len(handle.operands)]):
            sharding = required[number][position]
            if (
                tensor in cheap_to_clone
                and sharding != shardings[tensor]
                and makers[tensor][0] == op.group
            ):
                if (tensor, sharding) not in copies:
                    _, maker = makers[tensor]
                    copies[tensor, sharding] = maker.clone(ip=ir.InsertionPoint(maker)).results[0]
                handle.operands[position] = copies[tensor, sharding]
    return {copy: sharding for (_, sharding), copy in copies.items()}
