"""The function of mesh tensors that a program becomes once its parts have meshes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func as func_dialect

from shardopt.dialect.attributes import entries
from shardopt.dialect.donation import ALIASING_OUTPUT, argument_attributes
from shardopt.dialect.mpmd import KIND, STAGE_ID, mesh_tensor_type
from shardopt.extract.op_graph import reads
from shardopt.forms.shardy_form import SDY_SHARDING
from shardopt.forms.shardy_functions import stated_sharding
from shardopt.ir.rewriting import operations, replace_reads, shape_of, symbol_name
from shardopt.mesh.mesh import Mesh
from shardopt.passes.pipelining.plain_parts import (
    ASSIGN,
    REDUCE,
    RETURN,
    UNASSIGN,
    Extracted,
    NamedPart,
    PlainParts,
    mesh_name,
)
from shardopt.passes.stages.outlining import Group, Outliner, resolve
from shardopt.solve.stages.homes import Homes

# `#mpmd.reduction<add>` -> what two operands are joined by.
_JOINS = {
    "add": "stablehlo.add",
    "max": "stablehlo.maximum",
    "min": "stablehlo.minimum",
    "mul": "stablehlo.multiply",
    "or": "stablehlo.or",
    "and": "stablehlo.and",
}
_INFERRED = "inferred"


@dataclass(frozen=True)
class Placed:
    """What was found: steps and values by number, where they are, and the names of meshes."""

    extracted: Extracted
    homes: Homes
    meshes: tuple[Mesh, ...]

    def home(self, value: ir.Value) -> int | None:
        """The number of a mesh; None where the value is made anywhere, or read nowhere."""
        return self.homes.of_values[self.extracted.number[value]]


@dataclass
class _Run:
    """Operations that become one fragment."""

    mesh: int
    part: NamedPart | None
    ops: list[ir.Operation] = field(default_factory=list)


def outline(
    function: ir.Operation, parts: PlainParts, free: set[ir.Operation], placed: Placed
) -> int:
    """Replace `function` by one of fragments; their number."""
    runs = _runs(parts, free, placed)
    writer = _Writer(function, free, placed, parts.ops)
    writer.write(runs)
    made = len(operations(writer.function, ("mpmd.fragment",)))
    function.erase()
    return made


def _runs(parts: PlainParts, free: set[ir.Operation], placed: Placed) -> list[_Run | ir.Operation]:
    """In program order, with the operations of the dialect between them."""
    items: list[_Run | ir.Operation] = []

    def add(op: ir.Operation, mesh: int, part: NamedPart | None) -> None:
        last = items[-1] if items else None
        if not isinstance(last, _Run) or (last.mesh, last.part) != (mesh, part):
            last = _Run(mesh, part)
            items.append(last)
        last.ops.append(op)

    for op, mesh in zip(parts.ops, placed.homes.of_steps, strict=True):
        if op in free:
            continue
        if op.name == REDUCE:
            assert mesh is not None, "reads something"
            for inner, there in _joined(op, mesh, placed):
                add(inner, there, None)
        elif op.name == RETURN or op.name.startswith("mpmd."):
            items.append(op)
        else:
            assert mesh is not None, "is not everywhere"
            add(op, mesh, parts.parts.get(op))
    return items


def _joined(op: ir.Operation, mesh: int, placed: Placed) -> list[tuple[ir.Operation, int]]:
    """The binary operations that a reduction is, each with its mesh: first what lies on one."""
    name = _JOINS[str(op.attributes["reduction"]).split("<")[1].rstrip(">")]
    by_mesh: dict[int, list[ir.Value]] = {}
    for value in op.operands:
        home = placed.home(value)
        by_mesh.setdefault(mesh if home is None else home, []).append(value)
    made: list[tuple[ir.Operation, int]] = []

    def join(values: Sequence[ir.Value], where: int) -> ir.Value:
        total = values[0]
        for value in values[1:]:
            new = ir.Operation.create(
                name,
                [value.type],
                [total, value],
                loc=op.location,
                ip=ir.InsertionPoint(op),
            )
            made.append((new, where))
            total = new.results[0]
        return total

    partial = [join(values, where) for where, values in sorted(by_mesh.items())]
    total = join(partial, mesh)
    placed.extracted.number[total] = placed.extracted.number[op.results[0]]
    op.results[0].replace_all_uses_with(total)
    return made


class _Writer:
    """Writes the new function, in front of the old one."""

    def __init__(
        self,
        old: ir.Operation,
        free: set[ir.Operation],
        placed: Placed,
        order: Sequence[ir.Operation],
    ) -> None:
        self.old, self.placed, self.order = old, placed, order
        self.shared = {value for op in free for value in op.results}
        self.out = Outliner()
        # Old values on meshes -> new ones, or what is assigned to which mesh.
        self.values: dict[ir.Value, ir.Value] = {}
        self.assigned: dict[ir.Value, tuple[ir.Value, str]] = {}
        self.function = self._begin()

    def write(self, items: Sequence[_Run | ir.Operation]) -> None:
        live = _live(items, self.order)
        for item in items:
            if isinstance(item, _Run):
                self._emit(item, live)
            elif item.name == ASSIGN:
                self.assigned[item.results[0]] = item.operands[0], mesh_name(item.results[0].type)
            elif item.name == UNASSIGN:
                name = mesh_name(item.operands[0].type)
                self.out.define(item.results[0], name, self._on_mesh(item.operands[0]))
            elif item.name == RETURN:
                self._finish(item)
            else:
                self._clone(item)

    def _begin(self) -> ir.Operation:
        block = self.old.regions[0].blocks[0]
        types = [
            self._type_at(value, ir.DictAttr(row))
            for value, row in zip(block.arguments, argument_attributes(self.old), strict=True)
        ]
        function = func_dialect.FuncOp(
            symbol_name(self.old),
            ir.FunctionType.get(types, []),
            loc=self.old.location,
            ip=ir.InsertionPoint(self.old),
        ).operation
        locations = [value.location for value in block.arguments]
        self.out.block = function.regions[0].blocks.append(*types, arg_locs=locations)
        for value, new in zip(block.arguments, self.out.block.arguments, strict=True):
            if value in self.placed.extracted.number:
                self.out.define(value, mesh_name(new.type), new)
            else:
                self.values[value] = new
        return function

    def _type_at(self, argument: ir.Value, attributes: ir.DictAttr) -> ir.Type:
        if argument not in self.placed.extracted.number:
            return argument.type
        mesh = self.placed.meshes[self.placed.home(argument) or 0]
        sharding = stated_sharding(entries(attributes))
        if sharding is not None:
            try:
                sharding.check(mesh, shape_of(argument))
            except ValueError:  # along axes of another mesh
                sharding = None
        return mesh_tensor_type(mesh.name, argument.type, sharding)

    def _emit(self, run: _Run, live: set[ir.Value]) -> None:
        group = Group(self._name(run.mesh), 0, _INFERRED, run.ops)
        self._fragment(group, live, None if run.part is None else run.part.origin)

    def _fragment(self, group: Group, live: set[ir.Value], origin: ir.Attribute | None) -> None:
        [resolved] = resolve([group], self.order, self.shared.__contains__)
        op = self.out.emit(resolved, live)
        if op is not None:
            del op.attributes[KIND], op.attributes[STAGE_ID]
            op.attributes["origin"] = ir.ArrayAttr.get([] if origin is None else [origin])

    def _on(self, value: ir.Value, name: str) -> ir.Value:
        if value in self.shared and name not in self.out.where.get(value, {}):
            self._fragment(Group(name, 0, _INFERRED, [], [value]), set(), None)
        return self.out.arrive(value, name, self.old.location)

    def _on_mesh(self, value: ir.Value) -> ir.Value:
        if value in self.assigned:
            return self._on(*self.assigned[value])
        return self.values[value]

    def _clone(self, op: ir.Operation) -> None:
        # first, as these may become fragments in front of it
        operands = {value: self._on_mesh(value) for value in op.operands}
        new = op.clone(ip=ir.InsertionPoint(self.out.block))
        replace_reads(new, operands)
        self.values.update(zip(op.results, new.results, strict=True))

    def _finish(self, end: ir.Operation) -> None:
        plain = self.placed.extracted.number
        values = [
            self._on(value, self._name(self.placed.home(value)))
            if value in plain
            else self._on_mesh(value)
            for value in end.operands
        ]
        func_dialect.ReturnOp(values, loc=end.location, ip=ir.InsertionPoint(self.out.block))
        results = [value.type for value in values]
        arguments = [value.type for value in self.out.block.arguments]
        type_ = ir.FunctionType.get(arguments, results)
        for name in self.old.attributes:
            if name != "function_type":
                self.function.attributes[name] = self.old.attributes[name]
        self.function.attributes["function_type"] = ir.TypeAttr.get(type_)
        rows = zip(argument_attributes(self.old), arguments, strict=True)
        kept = [_kept(ir.DictAttr(row), argument, results) for row, argument in rows]
        self.function.attributes["arg_attrs"] = ir.ArrayAttr.get(kept)

    def _name(self, mesh: int | None) -> str:
        return self.placed.meshes[mesh or 0].name


def _kept(row: ir.DictAttr, type_: ir.Type, results: Sequence[ir.Type]) -> ir.Attribute:
    """Types say shardings now, and no buffer is for a result on another mesh."""
    attributes = entries(row)
    attributes.pop(SDY_SHARDING, None)
    result = attributes.get(ALIASING_OUTPUT)
    if result is not None and type_ != results[ir.IntegerAttr(result).value]:
        del attributes[ALIASING_OUTPUT]
    return ir.DictAttr.get(attributes)


def _live(items: Sequence[_Run | ir.Operation], order: Sequence[ir.Operation]) -> set[ir.Value]:
    """What is read outside of the fragment that makes it."""
    maker: dict[ir.Value, int] = {
        value: number
        for number, item in enumerate(items)
        if isinstance(item, _Run)
        for op in item.ops
        for value in op.results
    }
    live: set[ir.Value] = set()
    for number, item in enumerate(items):
        for op in item.ops if isinstance(item, _Run) else [item]:
            live.update(value for value in reads(op) if maker.get(value, number) != number)
            if not isinstance(item, _Run):
                live.update(op.operands)
    return live
