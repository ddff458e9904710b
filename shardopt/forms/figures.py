"""Figures of a plan, on fragments, calls, transfers and the microbatch loop: what a fragment costs,
what a transfer takes, what was predicted of a step.

    {shardopt.cost = {seconds = 1.5e-03 : f64, peak_bytes = 65536 : i64, collectives = […], …}}
    {shardopt.resharding = {bytes = 4096 : i64, seconds = 1.0e-04 : f64, …}}
    {shardopt.predicted = {schedule = "1f1b", step_seconds = 1.5e-02 : f64, …}}

Later passes add them up and reports show them, so each has to be a number that can be: an infinite
or negative one makes any plan the best."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from jaxlib.mlir import ir

from shardopt.cost.collectives import COLLECTIVES
from shardopt.dialect.attributes import entries, to_values
from shardopt.dialect.batch import BATCH
from shardopt.dialect.donation import argument_attributes
from shardopt.dialect.mpmd import (
    BACKWARD,
    COST,
    IN_FLIGHT,
    KIND,
    RESHARDING,
    SCHEDULE,
    is_mesh_tensor,
    parse_mesh_tensor,
)
from shardopt.dialect.prediction import PREDICTED
from shardopt.dialect.token_slices import TOKEN_SLICES, read_token_slices
from shardopt.forms.imported_form import Violation
from shardopt.ir.rewriting import functions, operations
from shardopt.mesh.mesh import Mesh

_FRAGMENTS = ("mpmd.fragment", "mpmd.fragment_call")
# Entries of the dictionaries that are no amounts; others check these.
_OTHERS = {
    COST: {"collectives"},
    RESHARDING: {"strategy", "steps"},
    PREDICTED: {"schedule"},
    SCHEDULE: {"name", "tasks", "peak_bytes"},
}
_COST_PARTS = ("seconds", "compute_seconds", "communication_seconds")


def figure_violations(module: ir.Module, meshes: Mapping[str, Mesh]) -> Iterator[Violation]:
    """All figures that cannot be: of functions, then of operations in program order."""
    for function in functions(module):
        yield from (Violation(function, message) for message in batch_faults(function))
    for op in operations(module.operation, (*_FRAGMENTS, "mpmd.transfer", "mpmd.for")):
        yield from (Violation(op, message) for message in _of_operation(op, meshes))


def batch_faults(function: ir.Operation) -> Iterator[str]:
    """Dimensions of arguments that are said to hold the batch, and are none."""
    if "arg_attrs" not in function.attributes:
        return
    inputs = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).inputs
    rows = zip(inputs, argument_attributes(function), strict=True)
    for number, (type_, row) in enumerate(rows):
        if BATCH not in row:
            continue
        tensor = parse_mesh_tensor(type_).tensor if is_mesh_tensor(type_) else type_
        rank = tensor.rank if isinstance(tensor, ir.RankedTensorType) else 0
        dim = row[BATCH]
        if not isinstance(dim, ir.IntegerAttr) or not 0 <= dim.value < rank:
            yield (
                f"argument {number}: expected a dimension below {rank} as '{BATCH}', found {dim}"
            )


def _of_operation(op: ir.Operation, meshes: Mapping[str, Mesh]) -> Iterator[str]:
    try:
        amounts = {key: _amounts(op, key) for key in _OTHERS if key in op.attributes}
    except ValueError as error:
        yield str(error)
        return
    if COST in amounts and op.name in _FRAGMENTS:
        yield from _of_sums(amounts[COST])
        mesh = meshes.get(ir.StringAttr(op.attributes["mesh_name"]).value)
        if mesh is not None:
            yield from _of_collectives(op, mesh, amounts[COST])
    if SCHEDULE in amounts:
        yield from _of_schedule(op, len(meshes), amounts[SCHEDULE])
    if BACKWARD in op.attributes and op.name in _FRAGMENTS:
        yield from _of_backward(op)
    if IN_FLIGHT in op.attributes:
        yield from _of_in_flight(op)
    if TOKEN_SLICES in op.attributes:
        yield from _of_token_slices(op)


def _amounts(op: ir.Operation, key: str) -> dict[str, float]:
    """Raises ValueError where an entry of dictionary `key` is none."""
    amounts: dict[str, float] = {}
    for name, value in entries(ir.DictAttr(op.attributes[key])).items():
        if name in _OTHERS[key]:
            continue
        number = value.value if isinstance(value, ir.FloatAttr | ir.IntegerAttr) else -1
        if not 0 <= number < math.inf:
            raise ValueError(f"expected a number of at least 0 as {name} in '{key}', found {value}")
        amounts[name] = number
    return amounts


def _of_sums(amounts: Mapping[str, float]) -> Iterator[str]:
    if not amounts.keys() >= set(_COST_PARTS):
        return
    seconds, compute, communication = (amounts[name] for name in _COST_PARTS)
    hidden, host = (amounts.get(name, 0.0) for name in ("hidden_seconds", "host_seconds"))
    parts = compute + communication - hidden + host
    if not math.isclose(seconds, parts, rel_tol=1e-6, abs_tol=1e-12):
        yield f"expected {parts:g} seconds in '{COST}', the sum of its parts, found {seconds:g}"


def _of_collectives(op: ir.Operation, mesh: Mesh, amounts: Mapping[str, float]) -> Iterator[str]:
    collectives = entries(ir.DictAttr(op.attributes[COST])).get("collectives")
    if collectives is None:
        return
    listed = list(collectives) if isinstance(collectives, ir.ArrayAttr) else [collectives]
    rows = [to_values(row) for row in listed]
    for attribute, row in zip(listed, rows, strict=True):
        if not _is_collective(row, mesh.axis_names):
            yield (
                f"expected collectives of a kind ({', '.join(COLLECTIVES)}), axes "
                f"({', '.join(mesh.axis_names)}), tensors and bytes in '{COST}', found {attribute}"
            )
            return
    total = sum(row["bytes"] for row in rows)
    if total != amounts.get("communication_bytes", total):
        yield (
            f"expected {total} communication_bytes in '{COST}', the sum of its collectives, found "
            f"{amounts['communication_bytes']:.0f}"
        )


def _is_collective(row: Any, axes: tuple[str, ...]) -> bool:
    return (
        isinstance(row, dict)
        and row.keys() == {"kind", "axes", "tensors", "bytes"}
        and row["kind"] in COLLECTIVES
        and isinstance(row["axes"], list)
        and set(map(str, row["axes"])) <= set(axes)
        and all(isinstance(row[name], int) and row[name] >= 0 for name in ("tensors", "bytes"))
    )


def _of_schedule(
    loop: ir.Operation, num_meshes: int, amounts: Mapping[str, float]
) -> Iterator[str]:
    bubble = amounts.get("bubble", 0.0)
    if bubble > 1:
        yield f"expected a share of at most 1 as bubble in '{SCHEDULE}', found {bubble:g}"
    peaks = entries(ir.DictAttr(loop.attributes[SCHEDULE])).get("peak_bytes")
    if peaks is None:
        return
    numbers = list(peaks) if isinstance(peaks, ir.DenseI64ArrayAttr) else []
    if len(numbers) != num_meshes or min(numbers, default=0) < 0:
        yield f"expected peak_bytes of {num_meshes} meshes in '{SCHEDULE}', found {peaks}"


def _of_backward(op: ir.Operation) -> Iterator[str]:
    kind = ir.StringAttr(op.attributes[KIND]).value if KIND in op.attributes else "none"
    if kind != "fwd":
        yield f"expected '{BACKWARD}' on forwards alone, found it on kind '{kind}'"


def _of_in_flight(loop: ir.Operation) -> Iterator[str]:
    attribute = loop.attributes[IN_FLIGHT]
    if not isinstance(attribute, ir.DenseI64ArrayAttr) or min(attribute, default=0) < 1:
        yield f"expected numbers from 1 in '{IN_FLIGHT}', found {attribute}"


def _of_token_slices(loop: ir.Operation) -> Iterator[str]:
    try:
        slices = read_token_slices(loop)
    except ValueError as error:
        yield str(error)
        return
    assert slices is not None
    if min(slices.lengths, default=0) < 1:
        yield f"expected lengths from 1 in '{TOKEN_SLICES}', found {list(slices.lengths)}"
    borders = slices.borders
    if len(borders) < 2 or borders[0] != 0 or any(a >= b for a, b in pairwise(borders)):
        yield f"expected layers that grow from 0 in '{TOKEN_SLICES}', found {list(borders)}"
        return
    stages, known = slices.count * (len(borders) - 1), loop.attributes.get(IN_FLIGHT, None)
    if isinstance(known, ir.DenseI64ArrayAttr) and len(known) != stages:
        yield f"expected slices of {len(known)} stages in '{TOKEN_SLICES}', found {stages}"
