"""Intermediate shardings where the way from producer to reader takes several collectives.

    %1 = dot_general …       {mhlo.sharding = "{devices=[1,4]<=[4]}"}
    %s = custom_call @Sharding(%1)
         (the stop)          {mhlo.sharding = "{devices=[1,2,2]<=[4] last_tile_dim_replicate}"}
    %2 = add %s, %y          {mhlo.sharding = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"}

XLA's partitioner looks for one step from producer to reader and otherwise gathers the whole tensor
on every device ("involuntary full rematerialization"); with the stops of the planned chain it takes
the planned steps. In the same way a reduce-scatter is written as the reduced result and, behind it,
the part that each device keeps: from the scattered result alone the partitioner may conclude that
the operands should be resharded instead. A sum that is scattered along some axes, and all-reduced
or left along others, is written as the unreduced result and, behind it, a stop for each collective.
An operation on unreduced operands is written as its unreduced result and, behind it, the sum:
otherwise the partitioner would sum up each operand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from jaxlib.mlir import ir

from shardopt.cost.resharding_chain import resharding_stops
from shardopt.extract.op_graph import GraphReader
from shardopt.ir.rewriting import identity
from shardopt.mesh.mesh import Mesh, Sharding


def insert_scatters(
    reader: GraphReader, mesh: Mesh, scattered: Mapping[int, tuple[Sharding, Sharding]]
) -> dict[ir.Value, Sharding]:
    """Put the part that each device keeps behind every operation of `scattered`: number ->
    (reduced, scattered), by the steps of a sum that is taken in several.

    Returns the shardings of the new values and those, now of the reduced form, of the operations'
    own results."""
    new_shardings: dict[ir.Value, Sharding] = {}
    for number, (reduced, kept) in scattered.items():
        handle, [tensor] = reader.handles[number], reader.ops[number].results
        result = value = handle.results[0]
        uses, place = list(result.uses), ir.InsertionPoint.after(handle)
        new_shardings[result] = reduced
        for stop in (*resharding_stops(reduced, kept, mesh, reader.tensors[tensor].shape), kept):
            value = identity(value, handle.location, place).result
            new_shardings[value] = stop
        for use in uses:
            use.owner.operands[use.operand_number] = value
    return new_shardings


def insert_stops(
    reader: GraphReader,
    mesh: Mesh,
    shardings: Mapping[int, Sharding],
    required: Mapping[int, Sequence[Sharding]],
    skip: Set[int],
) -> dict[ir.Value, Sharding]:
    """Insert the stops before the first reader that needs them; the new values and their shardings.

    `required[k]` are the operand shardings of operation k of the reader. Readers in one scope share
    the stops by which their ways begin; in the fragment that makes them, tensors of `skip` are left
    alone."""
    home = {result: op.group for op in reader.ops for result in op.results}
    added: dict[ir.Value, Sharding] = {}
    after: dict[tuple[ir.Value, Sharding, tuple[int, int]], ir.Value] = {}
    for number, (op, handle) in enumerate(zip(reader.ops, reader.handles, strict=True)):
        # Values that regions capture stand behind the operands; what reads them is replicated.
        for position, tensor in enumerate(op.operands[: len(handle.operands)]):
            target = required[number][position]
            if shardings[tensor] == target or (tensor in skip and home[tensor] == op.group):
                continue
            value = handle.operands[position]
            # The last step needs a stop as well: without one the partitioner takes a way of its
            # own.
            stops = resharding_stops(shardings[tensor], target, mesh, reader.tensors[tensor].shape)
            for stop in (*stops, target):
                key = (value, stop, op.scope)
                if key not in after:
                    after[key] = identity(value, handle.location, ir.InsertionPoint(handle)).result
                    added[after[key]] = stop
                value = after[key]
            handle.operands[position] = value
    return added
