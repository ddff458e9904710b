"""A module in the chosen form, as the passes that obey the decisions read it.

    for part in read_parts(module):       # each fragment, or the @main of a plain module
        part.reader, part.required        # operations by number, and how they want their operands
        part.shardings, part.values()     # how every tensor lies, and every IR value
        …rewrite, with `values` kept up to date…
        part.settle(values)               # strategies that say what now stands there

Every part is read on its own: what crosses the boundary of a fragment has its sharding in its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import TOPOLOGY, parse_mesh_tensor, read_topology
from shardopt.dialect.plain_mesh import read_plain_mesh
from shardopt.dialect.strategy import CLONE, STRATEGY, OpStrategy, read_strategy, strategy_attr
from shardopt.extract.control_flow import RegionReader, numbered_operations
from shardopt.extract.op_graph import reads
from shardopt.graph.op_graph import Op
from shardopt.ir.rewriting import functions, operations, symbol_name
from shardopt.mesh.mesh import Mesh, Sharding

# Names, rules and work matter to those who choose, and take most of the reading.
_PLACED = Op(name="", operands=(), results=(), rule=None)


class _Reader(RegionReader):
    """Reads which operation reads and makes what, and nothing else of it."""

    def _first_alike(
        self, op: ir.Operation, operands: tuple[int, ...], results: tuple[int, ...]
    ) -> Op:
        return _PLACED


@dataclass(frozen=True, eq=False)
class ChosenPart:
    """What runs on one mesh: a fragment, or the `@main` of a plain module, as the operation
    `holder`.

    `strategies` are by the numbers of operations in `reader`, `arguments` by argument of the block.
    """

    holder: ir.Operation
    mesh: Mesh
    reader: RegionReader
    arguments: tuple[Sharding, ...]
    strategies: tuple[OpStrategy, ...]

    @property
    def block(self) -> ir.Block:
        return self.holder.regions[0].blocks[0]

    @cached_property
    def shardings(self) -> dict[int, Sharding]:
        """How each tensor of `reader` lies."""
        arguments = map(self.reader.tensor, self.block.arguments)
        by_tensor = dict(zip(arguments, self.arguments, strict=True))
        for op, strategy in zip(self.reader.ops, self.strategies, strict=True):
            by_tensor.update(zip(op.results, strategy.results, strict=True))
        return by_tensor

    @property
    def required(self) -> dict[int, tuple[Sharding, ...]]:
        """The shardings in which each operation wants its operands."""
        return {number: strategy.operands for number, strategy in enumerate(self.strategies)}

    @property
    def clones(self) -> frozenset[int]:
        """Tensors that are made once more for each reader that wants them in another sharding."""
        pairs = zip(self.reader.ops, self.reader.handles, strict=True)
        return frozenset(op.results[0] for op, handle in pairs if CLONE in handle.attributes)

    def values(self) -> dict[ir.Value, Sharding]:
        """How each value lies, also what regions take and what barriers hand on."""
        shardings = self.shardings
        return {value: shardings[tensor] for value, tensor in self.reader.index.items()}

    def settle(self, values: Mapping[ir.Value, Sharding]) -> None:
        """Let every operation say how what it reads and makes lies: no longer what it would
        want."""
        # Layers repeat, and so does how their operations lie.
        texts: dict[tuple[tuple[Sharding, ...], ...], ir.Attribute] = {}
        for op in numbered_operations(self.block):
            operands = tuple([values[value] for value in reads(op)])
            results = tuple([values[result] for result in op.results])
            text = texts.get(lies := (operands, results))
            if text is None:
                plain = OpStrategy.plain(operands, results)
                text = texts[lies] = strategy_attr(plain, op.context)
            attributes = op.attributes
            attributes[STRATEGY] = text
            if CLONE in attributes:
                del attributes[CLONE]

    def unsettled(self) -> tuple[ir.Operation, str] | None:
        """The first operation that reads an operand in another sharding than it lies in."""
        rows = zip(self.reader.handles, self.reader.ops, self.strategies, strict=True)
        for handle, op, strategy in rows:
            for position, tensor in enumerate(op.operands):
                required, lies = strategy.operands[position], self.shardings[tensor]
                if required != lies:
                    return (
                        handle,
                        f"operand {position} of '{handle.name}' as {required}, found {lies}",
                    )
        return None


def main_of(module: ir.Module) -> ir.Operation:
    """Raises ValueError where there is none."""
    main = next((f for f in functions(module) if symbol_name(f) == "main"), None)
    if main is None:
        raise ValueError("expected a function '@main', found none")
    return main


class Holder(NamedTuple):
    """What runs on one mesh (`ChosenPart`), unread."""

    op: ir.Operation
    mesh: Mesh
    arguments: tuple[Sharding, ...]

    @property
    def numbered(self) -> list[ir.Operation]:
        """The operations that have a strategy."""
        return numbered_operations(self.op.regions[0].blocks[0])


def find_holders(module: ir.Module) -> tuple[Holder, ...]:
    """Each fragment, or `@main`. Raises ValueError for a module that is not in the chosen form."""
    main = main_of(module)
    if TOPOLOGY not in main.attributes:
        return (Holder(main, read_plain_mesh(main), read_strategy(main).operands),)
    meshes = {mesh.name: mesh for mesh in read_topology(main)}
    return tuple(
        Holder(
            op,
            meshes[ir.StringAttr(op.attributes["mesh_name"]).value],
            tuple(map(_sharding, op.operands)),
        )
        for op in operations(module.operation, ("mpmd.fragment",))
    )


def read_parts(module: ir.Module, *, with_attribute: str = "") -> tuple[ChosenPart, ...]:
    """Each fragment, or `@main`; only those `with_attribute`, if one is named. Raises ValueError
    for a module that is not in the chosen form."""
    return tuple(
        _part(*holder)
        for holder in find_holders(module)
        if with_attribute in ("", *holder.op.attributes)
    )


def _part(holder: ir.Operation, mesh: Mesh, arguments: tuple[Sharding, ...]) -> ChosenPart:
    reader = _Reader()
    *body, _ = (view.operation for view in holder.regions[0].blocks[0].operations)
    reader.add_ops(body)
    return ChosenPart(holder, mesh, reader, arguments, tuple(map(read_strategy, reader.handles)))


def _sharding(value: ir.Value) -> Sharding:
    sharding = parse_mesh_tensor(value.type).sharding
    if sharding is None:
        raise ValueError(
            "expected a mesh tensor with a sharding (run shardopt-choose-shardings first), "
            f"found {value.type}"
        )
    return sharding
