"""Turn a rolled microbatch loop back into straight-line code, which the reference interpreter can
run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.dialect.program import StepProgram, body_of, read_program
from shardopt.ir.rewriting import terminator
from shardopt.ir.splats import splat_constant


def expand_loop(module: ir.Module) -> None:
    """Replace the `mpmd.for` of `@main` by one copy of `@microbatch` an iteration."""
    program = read_program(module)
    carried = list(program.loop.operands)
    with ir.InsertionPoint(program.loop), program.loop.location:
        for number in range(program.num_microbatches):
            carried = _one_iteration(program, [*carried, _index(program, number)])
    for result, value in zip(program.loop.results, carried, strict=True):
        result.replace_all_uses_with(value)
    program.loop.erase()
    program.body.erase()
    module.operation.verify()


def evaluate(module: ir.Module, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run `@main` in StableHLO's reference interpreter."""
    types = [argument.type for argument in _main(module).regions[0].blocks[0].arguments]
    attributes = [_dense(a, t) for a, t in zip(arguments, types, strict=True)]
    return [np.array(result) for result in stablehlo.eval_module(module, attributes)]


def _dense(array: np.ndarray, type_: ir.Type) -> ir.DenseElementsAttr:
    tensor = ir.RankedTensorType(type_)
    return ir.DenseElementsAttr.get(
        np.ascontiguousarray(array), type=tensor.element_type, shape=list(tensor.shape)
    )


def _main(module: ir.Module) -> ir.Operation:
    return next(
        op.operation for op in module.body.operations if "main" in str(op.attributes["sym_name"])
    )


def _index(program: StepProgram, number: int) -> ir.Value:
    return splat_constant(list(program.loop_block.arguments)[-1].type, number)


def _one_iteration(program: StepProgram, arguments: Sequence[ir.Value]) -> list[ir.Value]:
    outer = dict(zip(program.loop_block.arguments, arguments, strict=True))
    passed = [outer.get(value, value) for value in program.call.operands]
    inner = dict(zip(program.body_block.arguments, passed, strict=True))
    for op in body_of(program.body_block):
        copy = op.clone()
        _substitute(copy, inner)
        inner.update(zip(op.results, copy.results, strict=True))
    returned = [inner[value] for value in program.body_returned]
    results = dict(zip(program.call.results, returned, strict=True))
    return [results[value] for value in terminator(program.loop_block).operands]


def _substitute(op: ir.Operation, values: Mapping[ir.Value, ir.Value]) -> None:
    for k, operand in enumerate(op.operands):
        if operand in values:
            op.operands[k] = values[operand]
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                _substitute(inner.operation, values)
