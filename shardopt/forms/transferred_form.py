"""What a module looks like after the transfer phase: each value crosses to a mesh once, and as a
plan says.

    %t = mpmd.transfer {shardopt.resharding =
        {strategy = "send_recv", steps = dense<…> : tensor<nx(3+2r)xi64>, …}} %0

The steps of a transfer fill the tile of every destination device exactly once, from devices that
hold what they send. The microbatch index is known on every mesh, so its transfers need no plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import RESHARDING, parse_mesh_tensor, read_topology
from shardopt.dialect.program import StepProgram, read_program
from shardopt.forms.exported_form import mesh_value, read_steps
from shardopt.forms.figures import figure_violations
from shardopt.forms.imported_form import Violation
from shardopt.forms.mesh_checks import value_error
from shardopt.forms.reshard_steps import find_plan_fault, tiles_by_device
from shardopt.ir.rewriting import operations
from shardopt.mesh.mesh import Mesh


def violations(module: ir.Module) -> Iterator[Violation]:
    """All departures from the form; a missing loop or topology is reported alone."""
    try:
        program = read_program(module)
        meshes = {mesh.name: mesh for mesh in read_topology(program.main)}
    except ValueError as error:
        yield Violation(module.operation, str(error))
        return
    yield from figure_violations(module, meshes)
    index = _index(program)
    arrived: dict[tuple[ir.Value, str], ir.Operation] = {}
    for op in operations(module.operation, ("mpmd.transfer",)):
        message = next(
            filter(None, (value_error(v.type, meshes) for v in (op.operands[0], op.results[0]))),
            "",
        )
        if message:
            yield Violation(op, f"transfer: {message}")
            continue
        key = (op.operands[0], parse_mesh_tensor(op.results[0].type).mesh)
        if key in arrived:
            yield Violation(
                op, f"expected one transfer of a value to mesh '{key[1]}', found a second one"
            )
        arrived[key] = op
        if index is None or op.operands[0] != index:
            yield from _of_plan(op, meshes)


def _index(program: StepProgram) -> ir.Value | None:
    number = program.index_argument
    return None if number is None else program.body_block.arguments[number]


def _of_plan(op: ir.Operation, meshes: Mapping[str, Mesh]) -> Iterator[Violation]:
    source, target = mesh_value(op.operands[0].type), mesh_value(op.results[0].type)
    route = f"transfer from mesh '{source.mesh}' to mesh '{target.mesh}'"
    for end, value in (("source", op.operands[0]), ("destination", op.results[0])):
        if parse_mesh_tensor(value.type).sharding is None:
            yield Violation(op, f"{route}: expected a sharding on the {end}, found {value.type}")
    try:
        steps = read_steps(op, len(source.spec.shape))
    except ValueError as error:
        yield Violation(op, f"{route}: {error}")
        return
    if steps is None:
        yield Violation(op, f"{route}: expected '{RESHARDING}' with steps, found none")
        return
    source_tiles, target_tiles = (
        tiles_by_device(meshes[value.mesh], value.spec) for value in (source, target)
    )
    fault = find_plan_fault(steps, source_tiles, target_tiles)
    if fault is not None:
        yield Violation(op, f"{route}: {fault}")
