"""The chosen form: what was decided about shardings stands on the operations, and nothing obeys it
yet.

    mpmd.fragment<mesh="m0", …> (%x, %w) {shardopt.cost = {…}, shardopt.rematerialize = […]}
        (%a: …, %b: …) {
      %1 = stablehlo.dot_general %a, %b … {shardopt.strategy = "[{x}, {}], [{}, {}] -> [{x}, {}]"}
      %2 = stablehlo.add %1, %1 … {shardopt.strategy = "[{}, {}], [{}, {}] -> [{}, {}]"}
    } … -> !mpmd.mesh_tensor<"m0", tensor<8x4xf32>, sharding=<@m0, [{}, {}]>>

Between operations a value may lie in another sharding than its reader wants: `%1` above has to be
gathered. A plain module says on `@main` which mesh is meant (`shardopt.mesh`) and how arguments and
results lie (`shardopt.strategy`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import COST, TOPOLOGY, parse_mesh_tensor, read_topology
from shardopt.dialect.plain_mesh import read_plain_mesh
from shardopt.dialect.rematerialization import REMATERIALIZE, SeparateCopy, read_rematerialization
from shardopt.dialect.strategy import STRATEGY, read_strategy
from shardopt.extract.control_flow import numbered_operations
from shardopt.extract.op_graph import free_values
from shardopt.forms.imported_form import Violation
from shardopt.forms.mesh_checks import value_error
from shardopt.ir.rewriting import functions, operations, symbol_name, terminator
from shardopt.mesh.mesh import Mesh, Sharding


def violations(module: ir.Module) -> Iterator[Violation]:
    """All departures from the form, in program order; a missing `@main` or mesh is reported
    alone."""
    main = next((f for f in functions(module) if symbol_name(f) == "main"), None)
    if main is None:
        yield Violation(module.operation, "expected a function '@main', found none")
        return
    if TOPOLOGY in main.attributes:
        meshes = {mesh.name: mesh for mesh in read_topology(main)}
        for function in functions(module):
            yield from _of_function(function, meshes)
        return
    try:
        mesh = read_plain_mesh(main)
    except ValueError as error:
        yield Violation(main, str(error))
        return
    block = main.regions[0].blocks[0]
    yield from _of_strategy(main, list(block.arguments), list(terminator(block).operands), mesh)
    yield from _of_block(main, mesh)


def _of_function(function: ir.Operation, meshes: Mapping[str, Mesh]) -> Iterator[Violation]:
    for number, argument in enumerate(function.regions[0].blocks[0].arguments):
        for message in _of_value(argument, meshes):
            yield Violation(function, f"argument {number} of '@{symbol_name(function)}': {message}")
    for op in operations(function, ("mpmd.fragment", "mpmd.transfer", "mpmd.for", "mpmd.call")):
        for number, result in enumerate(op.results):
            for message in _of_value(result, meshes):
                yield Violation(op, f"result {number} of '{op.name}': {message}")
        if op.name == "mpmd.fragment":
            yield from _of_block(op, meshes[ir.StringAttr(op.attributes["mesh_name"]).value])


def _of_value(value: ir.Value, meshes: Mapping[str, Mesh]) -> Iterator[str]:
    error = value_error(value.type, meshes)
    if error:
        yield error
    elif parse_mesh_tensor(value.type).sharding is None:
        yield f"expected a mesh tensor with a sharding, found {value.type}"


def _of_block(holder: ir.Operation, mesh: Mesh) -> Iterator[Violation]:
    """`holder` is a fragment, or the `@main` of a plain module."""
    if COST not in holder.attributes:
        yield Violation(holder, f"expected attribute '{COST}' on '{holder.name}', found none")
    ops = numbered_operations(holder.regions[0].blocks[0])
    sound: set[tuple[object, ...]] = set()
    for op in ops:
        read, made = _read_by(op), list(op.results)
        # Layers repeat, and so do strategies on the same types.
        strategy = op.attributes.get(STRATEGY, None)
        key = (strategy, len(read), *(value.type for value in (*read, *made)))
        if key in sound:
            continue
        wrong = list(_of_strategy(op, read, made, mesh))
        yield from wrong
        if not wrong:
            sound.add(key)
    try:
        rows = read_rematerialization(holder)
    except ValueError as error:
        yield Violation(holder, str(error))
        return
    for row in rows:
        named = (*row.readers,) if isinstance(row, SeparateCopy) else (*row.chain, *row.readers)
        if (
            not row.readers
            or list(named) != sorted(set(named))
            or not 0 <= named[0] <= named[-1] < len(ops)
        ):
            yield Violation(
                holder,
                f"expected '{REMATERIALIZE}' to name operations below {len(ops)} in rising order, "
                f"readers behind the chain, found {list(named)}",
            )
        elif any(ops[number].block != ops[named[0]].block for number in named):
            yield Violation(
                holder,
                f"expected '{REMATERIALIZE}' to name operations of one region in a row, found "
                f"{list(named)}",
            )
        elif isinstance(row, SeparateCopy) and not 0 <= row.operand < (
            count := len(_read_by(ops[row.readers[0]]))
        ):
            yield Violation(
                holder,
                f"expected an operand below {count} in '{REMATERIALIZE}', found {row.operand}",
            )
        elif not isinstance(row, SeparateCopy) and len(row.strategies) != len(row.chain):
            yield Violation(
                holder,
                f"expected {len(row.chain)} strategies in '{REMATERIALIZE}', found "
                f"{len(row.strategies)}",
            )


def _read_by(op: ir.Operation) -> list[ir.Value]:
    return [*op.operands, *(free_values(op) if len(op.regions) else ())]


def _of_strategy(
    op: ir.Operation, operands: Sequence[ir.Value], results: Sequence[ir.Value], mesh: Mesh
) -> Iterator[Violation]:
    try:
        strategy = read_strategy(op)
    except ValueError as error:
        yield Violation(op, str(error))
        return
    sides = [("operands", strategy.operands, operands), ("results", strategy.results, results)]
    if strategy.is_scattered:
        sides.append(("results", strategy.made, results))
    for what, shardings, values in sides:
        if len(shardings) != len(values):
            yield Violation(
                op,
                f"expected shardings of {len(values)} {what} of '{op.name}', "
                f"found {len(shardings)}",
            )
            return
        for number, (sharding, value) in enumerate(zip(shardings, values, strict=True)):
            message = _misfit(sharding, tuple(ir.RankedTensorType(value.type).shape), mesh)
            if message:
                yield Violation(op, f"{what[:-1]} {number} of '{op.name}': {message}")


@lru_cache(maxsize=65536)  # few shardings stand on many values
def _misfit(sharding: Sharding, shape: tuple[int, ...], mesh: Mesh) -> str:
    try:
        sharding.check(mesh, shape)
    except ValueError as error:
        return str(error)
    return ""
