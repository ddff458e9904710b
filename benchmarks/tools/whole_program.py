"""What a module of any phase says, as one plain function: meshes, shardings, stages and schedules
forgotten.

    mpmd.transfer %x            =>  %x
    mpmd.fragment / a call      =>  its body
    mpmd.for, B iterations      =>  its body B times, %i = 0 … B - 1

None of the phases is asked, so a module and what they made of it can be held against
each other, also where the module is not one that they wrote."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir

from shardopt.dialect.mpmd import is_mesh_tensor, parse_mesh_tensor

MAX_ITERATIONS = 64
_RETURNS = ("func.return", "mpmd.return", "sdy.return")
_CALLS = {"mpmd.fragment_call": "callee", "mpmd.call": "callee", "func.call": "callee"}
_IDENTITIES = ("mpmd.transfer", "sdy.sharding_constraint", "sdy.propagation_barrier")
_IGNORED = ("shardopt.", "mhlo.", "sdy.")

Values = dict[ir.Value, ir.Value]


class NoMeaningError(Exception):
    """The module says nothing that one function could."""


def whole_program(module: ir.Module) -> ir.Module:
    """A module with `@main` alone. Raises NoMeaningError."""
    return _Writer(module).write()


class _Writer:
    def __init__(self, module: ir.Module) -> None:
        self.module = module
        self.functions = {
            ir.StringAttr(view.operation.attributes["sym_name"]).value: view.operation
            for view in module.body.operations
            if view.operation.name == "func.func"
        }

    def write(self) -> ir.Module:
        with self.module.context, ir.Location.unknown():
            result = ir.Module.create()
            main = self.functions["main"]
            type_ = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
            plain = ir.FunctionType.get(
                [_plain_type(each) for each in type_.inputs],
                [_plain_type(each) for each in type_.results],
            )
            with ir.InsertionPoint(result.body):
                function = ir.Operation.create(
                    "func.func",
                    attributes={
                        "sym_name": ir.StringAttr.get("main"),
                        "function_type": ir.TypeAttr.get(plain),
                    },
                    regions=1,
                )
            block = function.regions[0].blocks.append(*plain.inputs)
            with ir.InsertionPoint(block):
                returned = self._block(main.regions[0].blocks[0], list(block.arguments))
                ir.Operation.create("func.return", operands=returned)
            return result

    def _block(
        self, block: ir.Block, arguments: Sequence[ir.Value], outside: Values | None = None
    ) -> list[ir.Value]:
        values = (outside or {}) | dict(zip(block.arguments, arguments, strict=True))
        for view in block.operations:
            op = view.operation
            operands = [values[value] for value in op.operands]
            if op.name in _RETURNS:
                return operands
            values.update(zip(op.results, self._results(op, operands, values), strict=True))
        raise NoMeaningError("a block without a return")

    def _results(
        self, op: ir.Operation, operands: list[ir.Value], values: Values
    ) -> Sequence[ir.Value]:
        if op.name in _IDENTITIES or _is_annotation(op):
            return operands
        if op.name == "mpmd.fragment":
            return self._block(op.regions[0].blocks[0], operands)
        if op.name in _CALLS:
            callee = self.functions[ir.FlatSymbolRefAttr(op.attributes[_CALLS[op.name]]).value]
            return self._block(callee.regions[0].blocks[0], operands)
        if op.name == "mpmd.for":
            return self._loop(op, operands, values)
        if not op.name.startswith("stablehlo."):
            raise NoMeaningError(f"'{op.name}'")
        copy = op.clone()
        for number, operand in enumerate(operands):
            copy.operands[number] = operand
        _replace_captured(copy, values)
        for name in [name for name in op.attributes if name.startswith(_IGNORED)]:
            del copy.attributes[name]
        return list(copy.results)

    def _loop(self, op: ir.Operation, carried: list[ir.Value], outside: Values) -> list[ir.Value]:
        iterations = ir.IntegerAttr(op.attributes["iterations"]).value
        if iterations > MAX_ITERATIONS:
            raise NoMeaningError(f"{iterations} iterations")
        block = op.regions[0].blocks[0]
        for number in range(iterations):
            index = []
            if len(block.arguments) > len(carried):
                type_ = ir.RankedTensorType(_plain_type(block.arguments[len(carried)].type))
                value = ir.DenseElementsAttr.get(
                    np.array(number, np.uint32), type=type_.element_type
                )
                index = [
                    ir.Operation.create(
                        "stablehlo.constant", results=[type_], attributes={"value": value}
                    ).results[0]
                ]
            carried = self._block(block, [*carried, *index], outside)
        return carried


def _plain_type(type_: ir.Type) -> ir.Type:
    return parse_mesh_tensor(type_).tensor if is_mesh_tensor(type_) else type_


def _is_annotation(op: ir.Operation) -> bool:
    return (
        op.name == "stablehlo.custom_call"
        and ir.StringAttr(op.attributes["call_target_name"]).value == "Sharding"
    )


def _replace_captured(op: ir.Operation, values: Values) -> None:
    """Values from outside that operations in the regions read."""
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                inner = view.operation
                for number, operand in enumerate(inner.operands):
                    if operand in values:
                        inner.operands[number] = values[operand]
                _replace_captured(inner, values)
