"""A user's init function, cut into one stage function a mesh that computes what lives there,
already sharded.

    @main(key) -> (w0, w1)        w0 on m0, split by "x"; w1 on m1, replicated
    m0: @main(key) -> (w0 {sdy.sharding = <@mesh, [{"x"}, {}]>})
    m1: @main(key) -> (w1 {sdy.sharding = <@mesh, [{}, {}]>})

Where a mesh does not divide a result, its padding is made, too. Results that live elsewhere are
dropped with all that only they need, and XLA partitions the rest from the shardings of its results.
JAX's random bits are functions of an iota, so each device computes the bits of its shard alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxlib.mlir import ir

from shardopt.dialect.dtypes import numpy_name
from shardopt.dialect.sharding import to_sdy
from shardopt.forms.exported_program import StageFunction, TensorSpec
from shardopt.forms.padded_signature import pad_signature
from shardopt.forms.shardy import sharding_attribute
from shardopt.ir.io import module_bytecode
from shardopt.ir.native import run_native
from shardopt.ir.rewriting import copy_of, shape_of
from shardopt.ir.shapes import reshape, slice_
from shardopt.mesh.mesh import MESH_NAME, Mesh, Sharding
from shardopt.mesh.parts import Part
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.program.signature import Home
from shardopt.support.errors import UserError

_MAIN = "main"
_SHARDING = "sdy.sharding"


@dataclass(frozen=True)
class InitPart:
    """What one mesh runs: `function` takes all arguments of the init function, its results are the
    program's arguments `numbers`."""

    mesh: str
    function: StageFunction
    numbers: tuple[int, ...]


def split_init_function(
    module: ir.Module, program: Program, numbers: Sequence[int]
) -> tuple[InitPart, ...]:
    """`numbers[k]` is the argument of the program that result k of the module's `@main` becomes.

    Raises UserError when the results do not fit these arguments in number, shape or element type.
    """
    signature = _signature(_main(module))
    _check_results(signature.results, program, numbers)
    inputs = tuple(_spec(type_) for type_ in signature.inputs)
    arguments = program.signature.arguments
    parts = []
    for mesh in (part.mesh for part in program.meshes):
        homes = [
            (result, home)
            for result, number in enumerate(numbers)
            for home in arguments[number].homes
            if home.value.mesh == mesh.name
        ]
        if homes:
            specs = tuple(home.value.spec for _, home in homes)
            bytecode = _restricted(module, mesh, homes)
            function = StageFunction("init", bytecode, inputs, specs, ())
            parts.append(InitPart(mesh.name, function, tuple(home.number for _, home in homes)))
    return tuple(parts)


def _check_results(results: Sequence[ir.Type], program: Program, numbers: Sequence[int]) -> None:
    if len(results) != len(numbers):
        raise UserError(
            f"init function: expected {len(numbers)} results, one a state argument, found "
            f"{len(results)}"
        )
    for number, type_ in zip(numbers, results, strict=True):
        argument, spec = program.signature.arguments[number], _spec(type_)
        if (argument.shape, argument.dtype) != (spec.shape, spec.dtype):
            raise UserError(
                f"init function: expected {argument.dtype}{list(argument.shape)} for argument "
                f"'{argument.name}', "
                f"found {spec.dtype}{list(spec.shape)}"
            )
        if any(home.value.spec.sharding.unreduced for home in argument.homes):
            raise UserError(
                f"init function: argument '{argument.name}' is a sum that is not taken: no value "
                "can be made"
            )


def _restricted(module: ir.Module, mesh: Mesh, homes: Sequence[tuple[int, Home]]) -> bytes:
    """Bytecode of a copy that returns only what of its results lives on `mesh`, with shardings over
    that, and computes nothing else."""
    copy = copy_of(module)
    with module.context, ir.Location.unknown():
        axes = ", ".join(f'"{name}"={size}' for name, size in mesh.axes)
        declared = ir.Module.parse(f"sdy.mesh @{MESH_NAME} = <[{axes}]>").body.operations[0]
        declared.operation.clone(ip=ir.InsertionPoint.at_block_begin(copy.body))
        main = _main(copy)
        block = main.regions[0].blocks[0]
        end = block.operations[len(block.operations) - 1].operation
        with ir.InsertionPoint(end):
            kept = [_part(end.operands[number], home.part) for number, home in homes]
        ir.Operation.create("func.return", operands=kept, ip=ir.InsertionPoint(end))
        end.erase()
        inputs = [argument.type for argument in block.arguments]
        main.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get(inputs, [each.type for each in kept])
        )
        whole = [Sharding.replicated(ir.RankedTensorType(type_).rank) for type_ in inputs]
        main.attributes["arg_attrs"] = _rows(whole)
        shardings = [home.value.spec.sharding for _, home in homes]
        main.attributes["res_attrs"] = _rows(shardings)
        named = replace(mesh, name=MESH_NAME)
        pad_signature(main, mesh, whole, shardings, lambda each: sharding_attribute(each, named))
    # What only results of other meshes need has lost its readers.
    run_native(copy, "builtin.module(canonicalize,cse,symbol-dce)")
    return module_bytecode(copy)


def _part(value: ir.Value, part: Part | None) -> ir.Value:
    if part is None:
        return value
    starts, limits = [0] * len(shape_of(value)), list(shape_of(value))
    starts[part.dim], limits[part.dim] = part.start, part.start + part.rows
    rows = slice_(value, starts, limits)
    if not part.is_row:
        return rows
    shape = shape_of(rows)
    return reshape(rows, (*shape[: part.dim], *shape[part.dim + 1 :]))


def _rows(shardings: Sequence[Sharding]) -> ir.Attribute:
    """Attributes of arguments or results that say only how they are sharded."""
    texts = (
        f"{{{_SHARDING} = #sdy.sharding{to_sdy(sharding, MESH_NAME)}}}" for sharding in shardings
    )
    return ir.Attribute.parse(f"[{', '.join(texts)}]")


def _main(module: ir.Module) -> ir.Operation:
    symbols = ir.SymbolTable(module.operation)
    if _MAIN not in symbols:
        raise UserError(f"init function: expected a function @{_MAIN} in its module")
    return symbols[_MAIN].operation


def _signature(main: ir.Operation) -> ir.FunctionType:
    return ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)


def _spec(type_: ir.Type) -> TensorSpec:
    tensor = ir.RankedTensorType(type_)
    shape = tuple(tensor.shape)
    return TensorSpec(shape, numpy_name(str(tensor.element_type)), Sharding.replicated(len(shape)))
