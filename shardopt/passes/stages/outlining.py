"""Turn a block of plain operations into `mpmd.fragment`s on meshes, with transfers where a value
crosses meshes.

The caller says which group every operation goes to; operations of no group are *shared*: each group
that reads them gets a copy. The rest follows: a group's inputs, what it returns, and the transfers
(one a value and mesh).

    %1 = stablehlo.add %x, %x       // group A, mesh m0
    %2 = stablehlo.constant         // shared
    %3 = stablehlo.multiply %1, %2  // group B, mesh m1
 =>
    %a = mpmd.fragment<mesh="m0"> (%x) (…) { add ; return }
    %t = mpmd.transfer %a : … "m0" … -> … "m1" …
    %b = mpmd.fragment<mesh="m1"> (%t) (…) { constant ; multiply ; return }
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import mpmd

from shardopt.dialect.mpmd import (
    LAYER,
    FragmentHead,
    fragment,
    mesh_tensor_type,
    parse_mesh_tensor,
    transfer,
)
from shardopt.extract.op_graph import reads
from shardopt.ir.rewriting import defining, replace_reads


@dataclass
class Group:
    """Operations that become one fragment, of a forward perhaps with the `backward` of its stage.
    `exports` are shared values that must leave it, too."""

    mesh: str
    stage: int
    kind: str
    ops: list[ir.Operation] = field(default_factory=list)
    exports: list[ir.Value] = field(default_factory=list)
    backward: bool = False

    def origin(self) -> list[str]:
        layers = sorted(
            {
                ir.IntegerAttr(op.attributes[LAYER]).value
                for op in self.ops
                if LAYER in op.attributes
            }
        )
        return [f"layer_{k}" for k in layers if k >= 0] or [self.kind]


@dataclass(frozen=True)
class Resolved:
    """A group with the shared operations it copies, what it reads from outside, and what it
    defines."""

    group: Group
    ops: list[ir.Operation]
    inputs: list[ir.Value]
    defined: dict[ir.Value, None]


def resolve(
    groups: Iterable[Group], order: Sequence[ir.Operation], is_shared: Callable[[ir.Value], bool]
) -> list[Resolved]:
    """Complete every group with the shared operations it needs, in the program order `order`."""
    position = {op: k for k, op in enumerate(order)}
    resolved = []
    for group in groups:
        members = dict.fromkeys(group.ops)
        stack = [value for op in group.ops for value in reads(op)] + list(group.exports)
        while stack:
            value = stack.pop()
            producer = defining(value) if is_shared(value) else None
            if producer is not None and producer not in members:
                members[producer] = None
                stack.extend(reads(producer))
        ops = sorted(members, key=position.__getitem__)
        defined: dict[ir.Value, None] = dict.fromkeys(result for op in ops for result in op.results)
        inputs = dict.fromkeys(value for op in ops for value in reads(op) if value not in defined)
        resolved.append(Resolved(group, ops, list(inputs), defined))
    return resolved


@dataclass
class Outliner:
    """Emits resolved groups into `block`, a function body whose values are mesh tensors.

    `where[v]` maps an old value to its new values by mesh.
    """

    block: ir.Block = field(init=False)
    where: dict[ir.Value, dict[str, ir.Value]] = field(default_factory=dict)
    _types: dict[tuple[str, ir.Type], ir.Type] = field(default_factory=dict)

    def define(self, old: ir.Value, mesh: str, new: ir.Value) -> None:
        self.where.setdefault(old, {})[mesh] = new

    def type_on(self, mesh: str, tensor: ir.Type) -> ir.Type:
        key = (mesh, tensor)
        if key not in self._types:
            self._types[key] = mesh_tensor_type(mesh, tensor)
        return self._types[key]

    def arrive(self, old: ir.Value, mesh: str, loc: ir.Location) -> ir.Value:
        """The new value of `old` on `mesh`: a transfer is added when there is none yet."""
        places = self.where[old]
        if mesh not in places:
            # The mesh that made it comes first: no value travels over a third one.
            source = next(iter(places.values()))
            result_type = self.type_on(mesh, parse_mesh_tensor(source.type).tensor)
            places[mesh] = transfer(
                source, result_type, loc=loc, ip=ir.InsertionPoint(self.block)
            ).result
        return places[mesh]

    def emit(self, resolved: Resolved, live: set[ir.Value]) -> ir.Operation | None:
        """Emit one fragment that returns the defined values in `live` (and the exports); None when
        there is none."""
        group = resolved.group
        produced = dict.fromkeys(result for op in group.ops for result in op.results)
        returned = [v for v in produced if v in live] + [
            v for v in group.exports if v not in produced
        ]
        # Nobody reads what it makes.
        if not returned:
            return None
        loc = resolved.ops[0].location
        inputs = [self.arrive(v, group.mesh, loc) for v in resolved.inputs]
        op, block = fragment(
            FragmentHead(
                group.mesh, tuple(group.origin()), group.stage, group.kind, group.backward
            ),
            inputs,
            [self.type_on(group.mesh, v.type) for v in returned],
            loc=loc,
            ip=ir.InsertionPoint(self.block),
        )
        inner: dict[ir.Value, ir.Value] = dict(zip(resolved.inputs, block.arguments, strict=True))
        point = ir.InsertionPoint(block)
        for member in resolved.ops:
            clone_into(member, inner, point)
        mpmd.ReturnOp([inner[v] for v in returned], loc=loc, ip=point)
        for old, new in zip(returned, op.results, strict=True):
            self.define(old, group.mesh, new)
        return op


def clone_into(
    op: ir.Operation, values: dict[ir.Value, ir.Value], point: ir.InsertionPoint
) -> ir.Operation:
    """Clone `op` at `point` with its operands, and the values its regions capture, replaced;
    extends `values`."""
    new = op.clone(ip=point)
    replace_reads(new, values)
    if LAYER in new.attributes:
        del new.attributes[LAYER]
    values.update(zip(op.results, new.results, strict=True))
    return new
