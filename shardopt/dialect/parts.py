"""Arguments and results of `@main` that are parts of those of the model: `shardopt.part`.

    %arg0: tensor<8xf32> {shardopt.part = array<i64: 0, 0, 0, 1, 3>}     row 0 of 3
    %arg7: tensor<8xf32> {shardopt.part = array<i64: 0, 0, 1, 1, 3>}     row 1 of argument 0

A part of one row is without the dimension of rows; others have it. The first part stands in the
place of the whole, so that numbers that people use mean what they meant; the others stand behind
all that is no such part, in order. Results likewise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries
from shardopt.dialect.donation import read_replacements
from shardopt.dialect.mpmd import is_mesh_tensor, parse_mesh_tensor
from shardopt.mesh.parts import Part, misfits, misreplaced

PART = "shardopt.part"

Side = Literal["arg_attrs", "res_attrs"]


def part_attr(part: Part) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get([part.whole, *part.bounds])


def read_parts(func: ir.Operation, side: Side) -> dict[int, Part]:
    """argument (result) -> which part of which one it is. Raises ValueError for an attribute that
    says nothing of the kind."""
    found = {}
    for number, row in enumerate(_rows(func, side)):
        if PART in row:
            try:
                found[number] = Part(*ir.DenseI64ArrayAttr(row[PART]))
            except (TypeError, ValueError):
                raise ValueError(
                    "expected array<i64: whole, dimension, start, rows, extent> in "
                    f"'{PART}', found {row[PART]}"
                ) from None
    return found


def part_faults(func: ir.Operation) -> Iterator[str]:
    """What is wrong with parts: they are not where they should be, do not fit together, or are
    replaced by other parts than their own."""
    type_ = ir.FunctionType(ir.TypeAttr(func.attributes["function_type"]).value)
    sides: tuple[tuple[Side, str, list[ir.Type]], ...] = (
        ("arg_attrs", "argument", list(type_.inputs)),
        ("res_attrs", "result", list(type_.results)),
    )
    for side, noun, types in sides:
        try:
            parts = read_parts(func, side)
        except ValueError as error:
            yield f"{noun}s: {error}"
            return
        found = list(misfits(noun, parts, list(map(_shape, types)))) if parts else []
        yield from found
        if found:
            return
    arguments, results = (read_parts(func, side) for side, _, _ in sides)
    if arguments or results:
        yield from misreplaced(arguments, results, read_replacements(func))


def _shape(type_: ir.Type) -> tuple[int, ...]:
    tensor = parse_mesh_tensor(type_).tensor if is_mesh_tensor(type_) else type_
    return tuple(ir.RankedTensorType(tensor).shape)


def _rows(func: ir.Operation, side: Side) -> list[dict[str, ir.Attribute]]:
    if side not in func.attributes:
        return []
    return [entries(ir.DictAttr(row)) for row in ir.ArrayAttr(func.attributes[side])]
