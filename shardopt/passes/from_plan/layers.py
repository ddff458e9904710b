"""Layers from a plan file: those of all operations, or the places in the forward pass where a layer
begins."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries, i64
from shardopt.dialect.donation import argument_attributes
from shardopt.dialect.mpmd import LAYER
from shardopt.dialect.program import StepProgram
from shardopt.planfile.parts import PlannedLayers, Runs, layers_in
from shardopt.support.errors import UserError


def write_layers(program: StepProgram, planned: PlannedLayers) -> int:
    """Give every operation and argument its layer from the file; the number of layers.

    Raises UserError where the file is about a program of another size.
    """
    ops = {
        "body": (program.body_ops, planned.body or ()),
        "prologue": (program.prologue, planned.prologue),
        "epilogue": (program.epilogue, planned.epilogue),
    }
    # The body alone says how many there are: what stands outside the loop only follows its layers.
    count = max((layer for layer, _ in planned.body or ()), default=0) + 1
    layers = {
        name: _checked(name, runs, len(handles), -1, count) for name, (handles, runs) in ops.items()
    }
    # -1 is for operations that every reader copies; an argument always has one home.
    arguments = _checked(
        "arguments", planned.arguments, len(program.main_block.arguments), 0, count
    )
    for name, (handles, _) in ops.items():
        for op, layer in zip(handles, layers[name], strict=True):
            op.attributes[LAYER] = i64(layer)
    program.main.attributes["arg_attrs"] = ir.ArrayAttr.get(
        [
            ir.DictAttr.get({**entries(old), LAYER: i64(layer)})
            for old, layer in zip(argument_attributes(program.main), arguments, strict=True)
        ]
    )
    return count


def _checked(name: str, runs: Runs, count: int, least: int, layers: int) -> tuple[int, ...]:
    total = sum(length for _, length in runs)
    if total != count:
        what = "arguments" if name == "arguments" else "operations"
        raise UserError(
            f"field 'layers.{name}': expected the layers of {count} {what}, found {total}"
        )
    for layer, _ in runs:
        if not least <= layer < layers:
            raise UserError(
                f"field 'layers.{name}': expected layers from {least} to "
                f"{layers - 1}, found {layer}"
            )
    return layers_in(runs)


def first_ops(ops: Sequence[ir.Operation], starts: Sequence[str]) -> tuple[int, ...]:
    """Numbers of the operations at which layers begin. Each start is a number, or a pattern of
    locations that stands for the first operation behind the start before it that matches. Raises
    UserError where none does."""
    firsts: list[int] = []
    for k, start in enumerate(starts):
        behind = firsts[-1] + 1 if firsts else 0
        at = (
            int(start)
            if start.isdecimal()
            else _matching(ops, start, behind, f"layers.starts[{k}]")
        )
        if not behind <= at < len(ops):
            raise UserError(
                f"field 'layers.starts[{k}]': expected an operation from {behind} to "
                f"{len(ops) - 1}, found {at}"
            )
        firsts.append(at)
    return tuple(firsts)


def _matching(ops: Sequence[ir.Operation], pattern: str, behind: int, path: str) -> int:
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UserError(
            f"field '{path}': expected a number or a regular expression, found {pattern!r}: {error}"
        ) from None
    for number in range(behind, len(ops)):
        if expression.search(str(ops[number].location)):
            return number
    raise UserError(
        f"field '{path}': no operation from {behind} on has a location that matches {pattern!r}"
    )
