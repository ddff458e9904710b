"""The parts of a program that are on no mesh yet, in the form in which meshes are found for them.

    %1 = mpmd.named_computation<"f"> (%x) (%a) {       %1 = stablehlo.tanh %x       // of "f"
      %t = stablehlo.tanh %a ; mpmd.return %t }   =>
    %2 = mpmd.broadcast %1
    %3 = mpmd.reduce<add> %2, %y, %z                   %3 = mpmd.reduce<add> %1, %y, %z

What Shardy's `mpmd` dialect says of these: a named computation is a part to be put on one mesh, a
named tensor is a value to be put on one, a broadcast is a value that goes wherever it is read, and
a reduction takes its operands from several meshes; `none` marks what already is reduced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import mpmd

from shardopt.dialect.mpmd import is_mesh_tensor, mesh_tensor_type
from shardopt.extract.element_bits import element_bits
from shardopt.extract.op_graph import reads
from shardopt.ir.rewriting import shape_of, splice_block
from shardopt.solve.stages.homes import Step

NAMED, NAMED_TENSOR, BROADCAST = "mpmd.named_computation", "mpmd.named_tensor", "mpmd.broadcast"
ASSIGN, UNASSIGN, REDUCE = "mpmd.assign", "mpmd.unassign", "mpmd.reduce"
RETURN = "func.return"
# Made again on each mesh that reads them, where they read nothing but such.
_SOURCES = ("stablehlo.constant", "stablehlo.iota")
_CHEAP = (*_SOURCES, "stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.reshape")


@dataclass(frozen=True)
class NamedPart:
    """A named computation: its `#mpmd.user_origin`, and the number of its mesh."""

    origin: ir.Attribute
    mesh: int


@dataclass
class PlainParts:
    """The body of a function. `parts` are of operations that stood in a named computation."""

    block: ir.Block
    parts: dict[ir.Operation, NamedPart] = field(default_factory=dict)

    @property
    def ops(self) -> list[ir.Operation]:
        return [op.operation for op in self.block]


def names_of(block: ir.Block) -> tuple[str, ...]:
    """Of the computations and tensors, in program order."""
    named = [op.operation for op in block if op.operation.name in (NAMED, NAMED_TENSOR)]
    return tuple(dict.fromkeys(map(_name, named)))


def flatten(
    block: ir.Block, mesh_by_name: Mapping[str, int], mesh_names: Sequence[str]
) -> PlainParts:
    """Put the operations of named computations in their place, and drop what hands a value on."""
    found = PlainParts(block)
    for view in list(block):
        op = view.operation
        if op.name == NAMED:
            part = NamedPart(op.attributes["origin"], mesh_by_name[_name(op)])
            _inline(op, part, found)
        elif op.name == NAMED_TENSOR:
            _move(op, mesh_names[mesh_by_name[_name(op)]])
        elif hands_on(op):
            _replace(op, [op.operands[0]])
    return found


def hands_on(op: ir.Operation) -> bool:
    """Whether its result is its operand."""
    return op.name == BROADCAST or (op.name == REDUCE and len(op.operands) == 1)


def _name(op: ir.Operation) -> str:
    if op.name == NAMED_TENSOR:
        return ir.StringAttr(op.attributes["name"]).value
    return _user_name(op.attributes["origin"])


def _user_name(origin: ir.Attribute) -> str:
    """`f` of `#mpmd.user_origin<"f"(1)>`, which has no accessors in Python."""
    text = str(origin)
    return text[text.index('"') + 1 : text.rindex('"')]


def _inline(op: ir.Operation, part: NamedPart, found: PlainParts) -> None:
    body, end = splice_block(op.regions[0].blocks[0], list(op.operands), op)
    for inner in body:
        if inner.name == NAMED:  # belongs to what it stands in
            _inline(inner, part, found)
        elif inner.name == NAMED_TENSOR or hands_on(inner):
            _replace(inner, [inner.operands[0]])
        else:
            found.parts[inner] = part
    _replace(op, list(end.operands))


def _move(op: ir.Operation, mesh: str) -> None:
    """A named tensor is put on its mesh, and read from there."""
    value = op.operands[0]
    with op.location, ir.InsertionPoint(op):
        there = mpmd.AssignOp(mesh_tensor_type(mesh, value.type), value).result
        _replace(op, [mpmd.UnassignOp(there).result])


def _replace(op: ir.Operation, values: Sequence[ir.Value]) -> None:
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def free_ops(ops: Sequence[ir.Operation]) -> set[ir.Operation]:
    """Constants, and what is made of nothing else at no cost."""
    free: set[ir.Operation] = set()
    values: set[ir.Value] = set()
    for op in ops:
        cheap = op.name in _SOURCES or (op.name in _CHEAP and values.issuperset(op.operands))
        if cheap:
            free.add(op)
            values.update(op.results)
    return free


@dataclass(frozen=True)
class Extracted:
    """Steps, one an operation, and the numbers and bytes of plain values."""

    steps: tuple[Step, ...]
    number: dict[ir.Value, int]
    bytes_of_values: tuple[int, ...]


def extract(parts: PlainParts, free: set[ir.Operation], mesh_of: Mapping[str, int]) -> Extracted:
    """`mesh_of` is the number of a mesh by its name."""
    number: dict[ir.Value, int] = {}
    bytes_: list[int] = []

    def plain(values: Sequence[ir.Value]) -> tuple[int, ...]:
        for value in values:
            if not is_mesh_tensor(value.type) and value not in number:
                number[value] = len(number)
                bytes_.append(_bytes(value))
        return tuple(number[value] for value in values if value in number)

    plain(list(parts.block.arguments))
    steps = []
    for op in parts.ops:
        mesh = None
        if op in parts.parts:
            mesh = parts.parts[op].mesh
        elif op.name in (ASSIGN, UNASSIGN):
            of = op.results[0] if op.name == ASSIGN else op.operands[0]
            mesh = mesh_of[mesh_name(of.type)]
        steps.append(Step(plain(reads(op)), plain(list(op.results)), mesh, op in free))
    return Extracted(tuple(steps), number, tuple(bytes_))


def _bytes(value: ir.Value) -> int:
    bits = element_bits(str(ir.RankedTensorType(value.type).element_type))
    return prod(shape_of(value)) * bits // 8


def mesh_name(type_: ir.Type) -> str:
    """Of a mesh tensor."""
    return str(type_).split('"', 2)[1]
