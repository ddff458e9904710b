"""Which transfers travel together: as one message where transports combine what stands at one
place."""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import parse_mesh_tensor
from shardopt.dialect.program import StepProgram


def transfer_groups(program: StepProgram) -> Iterator[list[ir.Operation]]:
    """Transfers of values that one operation makes on one mesh, and that another mesh needs first
    in one operation: they are sent at once, and none keeps the reader waiting for what it does not
    need.

    Arguments count as made by one operation. In the order of first members; transfers of the
    microbatch index, which is known everywhere, are left out."""
    number = program.index_argument
    index = [] if number is None else [program.body_block.arguments[number]]
    for block in (program.main_block, program.body_block):
        maker: dict[ir.Value, int] = {}
        first_reader: dict[ir.Value, int] = {}
        transfers: list[ir.Operation] = []
        for position, op in enumerate(view.operation for view in block.operations):
            for value in op.operands:
                first_reader.setdefault(value, position)
            maker.update((result, position) for result in op.results)
            if op.name == "mpmd.transfer" and op.operands[0] not in index:
                transfers.append(op)
        together: dict[tuple[int | str, ...], list[ir.Operation]] = {}
        for op in transfers:
            value, result = op.operands[0], op.results[0]
            route = (parse_mesh_tensor(value.type).mesh, parse_mesh_tensor(result.type).mesh)
            key = (*route, maker.get(value, -1), first_reader.get(result, -1))
            together.setdefault(key, []).append(op)
        yield from together.values()
