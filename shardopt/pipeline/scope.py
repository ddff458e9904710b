"""Which ops a nested pass runs on: `builtin.module(func.func(cse))` runs on the functions directly
in the module."""

from __future__ import annotations

from collections.abc import Iterator

from jaxlib.mlir import ir

# In a pipeline this anchor stands for every op.
ANY_OP = "any"


def ops_under(module: ir.Module, anchors: tuple[str, ...]) -> Iterator[ir.Operation]:
    """The ops that a pass under `anchors` (the outermost is the module itself) runs on, in program
    order."""
    return _matching(module.operation, anchors[1:])


def _matching(op: ir.Operation, anchors: tuple[str, ...]) -> Iterator[ir.Operation]:
    if not anchors:
        yield op
        return
    for region in op.regions:
        for block in region.blocks:
            for child in block.operations:
                if anchors[0] in (child.operation.name, ANY_OP):
                    yield from _matching(child.operation, anchors[1:])
