"""Evaluates programs with a microbatch loop, in the microbatched or the staged form, with the
StableHLO interpreter."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from shardopt.dialect.mpmd import is_mesh_tensor, parse_mesh_tensor
from shardopt.dialect.program import body_of, read_program
from shardopt.extract.op_graph import free_values
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import terminator
from shardopt.passes.stages.outlining import clone_into

PROGRAMS = Path(__file__).parent / "programs"
NAMES = tuple(sorted(path.stem for path in PROGRAMS.glob("*.mlir")))

Values = dict[ir.Value, ir.DenseElementsAttr]


def load_program(name: str) -> ir.Module:
    return load_module(PROGRAMS / f"{name}.mlir", make_context())


def random_arguments(module: ir.Module, seed: int = 0) -> list[np.ndarray]:
    """Small positive numbers (second moments have square roots) for floats, 3 for integers."""
    random = np.random.default_rng(seed)
    with module.context:
        types = [tensor_of(argument.type) for argument in read_program(module).main_block.arguments]
        return [
            random.uniform(0.1, 1.0, type_.shape).astype(np.float32)
            if isinstance(type_.element_type, ir.F32Type)
            else np.full(type_.shape, 3, np.int32)
            for type_ in types
        ]


def tensor_of(type_: ir.Type) -> ir.RankedTensorType:
    return parse_mesh_tensor(type_).tensor if is_mesh_tensor(type_) else ir.RankedTensorType(type_)


def evaluate(module: ir.Module, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of `@main`."""
    with module.context, ir.Location.unknown():
        program = read_program(module)
        values: Values = {
            argument: ir.DenseElementsAttr.get(array)
            for argument, array in zip(program.main_block.arguments, arguments, strict=True)
        }
        _evaluate_ops(program.prologue, values)
        carried = [values[value] for value in program.loop.operands]
        for number in range(program.num_microbatches):
            local = dict(zip(program.loop_block.arguments, [*carried, _index(number)], strict=True))
            passed = [values.get(value) or local[value] for value in program.call.operands]
            inside: Values = dict(zip(program.body_block.arguments, passed, strict=True))
            _evaluate_ops(program.body_ops, inside)
            local.update(
                zip(program.call.results, [inside[v] for v in program.body_returned], strict=True)
            )
            carried = [local[value] for value in terminator(program.loop_block).operands]
        values.update(zip(program.loop.results, carried, strict=True))
        _evaluate_ops(program.epilogue, values)
        return [np.array(values[value]) for value in program.returned]


def _index(number: int) -> ir.DenseElementsAttr:
    return ir.DenseElementsAttr.get(np.array(number, np.uint32), signless=False)


def _evaluate_ops(ops: Sequence[ir.Operation], values: Values) -> None:
    """Extends `values` by the results of `ops`: fragments, transfers, and runs of plain
    operations."""
    for name, group in groupby(ops, key=lambda op: op.name if op.name.startswith("mpmd.") else ""):
        for run in [list(group)] if not name else ([op] for op in group):
            if name == "mpmd.transfer":
                values[run[0].results[0]] = values[run[0].operands[0]]
            elif name == "mpmd.fragment":
                _evaluate_fragment(run[0], values)
            else:
                results = [result for op in run for result in op.results]
                values.update(zip(results, _interpret(run, results, values), strict=True))


def _evaluate_fragment(fragment: ir.Operation, values: Values) -> None:
    block = fragment.regions[0].blocks[0]
    inside = dict(
        zip(block.arguments, [values[operand] for operand in fragment.operands], strict=True)
    )
    results = _interpret(body_of(block), list(terminator(block).operands), inside)
    values.update(zip(fragment.results, results, strict=True))


def _interpret(
    ops: Sequence[ir.Operation], results: Sequence[ir.Value], values: Values
) -> list[ir.DenseElementsAttr]:
    """Runs plain operations as a module of their own; `values` holds what they read from
    outside."""
    made = {result for op in ops for result in op.results}
    read = [v for op in ops for v in (*op.operands, *free_values(op))] + list(results)
    inputs = list(dict.fromkeys(value for value in read if value not in made))
    module = ir.Module.create()
    function = func.FuncOp(
        "main",
        ([v.type for v in inputs], [v.type for v in results]),
        ip=ir.InsertionPoint(module.body),
    )
    block = function.add_entry_block()
    inner: dict[ir.Value, ir.Value] = dict(zip(inputs, block.arguments, strict=True))
    point = ir.InsertionPoint(block)
    for op in ops:
        clone_into(op, inner, point)
    func.ReturnOp([inner[value] for value in results], ip=point)
    return list(stablehlo.eval_module(module, [values[value] for value in inputs]))


def run_xla(module: ir.Module, inputs: Sequence[Any]) -> list[np.ndarray]:
    """What XLA makes of a module for one host device."""
    import jax
    from jax.extend.backend import get_compile_options

    device = jax.devices("cpu")[0]
    code = io.BytesIO()
    module.operation.write_bytecode(code)
    options = get_compile_options(num_replicas=1, num_partitions=1)
    program = device.client.compile_and_load(code.getvalue(), (device,), options)
    results = program.execute_sharded([jax.device_put(x, device) for x in inputs])
    return [np.asarray(arrays[0]) for arrays in results.disassemble_into_single_device_arrays()]
