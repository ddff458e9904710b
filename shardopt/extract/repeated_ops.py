"""Operations that `jax.checkpoint` runs a second time: each with the one that it repeats.

    %h = stablehlo.tanh %x                                     %h
    %b:2 = stablehlo.optimization_barrier %x, %g          =>
    %h2 = stablehlo.tanh %b#0                                  %h2 repeats %h

JAX puts a barrier between the forward pass and what the backward pass computes again, which keeps
compilers from merging the two. Values are numbered as if the barriers were not there: an operation
behind a barrier whose name, attributes and operands have been seen before computes a value that
there is already. This tells the recomputation of a forward pass from the backward pass proper, and
from barriers that stand for something else."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from jaxlib.mlir import ir

from shardopt.dialect.mpmd import LAYER
from shardopt.extract.op_graph import reads
from shardopt.ir.rewriting import BARRIER
from shardopt.ir.splats import constant_value

Key = Hashable


def repeated_ops(ops: Sequence[ir.Operation]) -> dict[ir.Operation, ir.Operation]:
    """operation -> the first one of `ops` that computes the same, for those behind a barrier, in
    program order. `ops` are the operations of one block, in its order."""
    if not any(op.name == BARRIER for op in ops):
        return {}
    numbering = Numbering()
    for op in ops:
        numbering.add(op)
    return numbering.repeated


def equal_ops(ops: Sequence[ir.Operation]) -> dict[ir.Operation, ir.Operation]:
    """operation -> the first one of `ops` that computes the same, for those with which a compiler
    would merge it: not behind a barrier."""
    numbering = Numbering()
    for op in ops:
        numbering.add(op)
    return numbering.equal


def behind_barriers(ops: Sequence[ir.Operation]) -> set[ir.Operation]:
    """Those of `ops` that read what came out of a barrier, or is computed from that."""
    values = set[ir.Value]()
    behind = set[ir.Operation]()
    for op in ops:
        if op.name == BARRIER or any(value in values for value in reads(op)):
            behind.add(op)
            values.update(op.results)
    return behind


class Numbering:
    """Equal numbers for values that are equal if barriers only hand their operands on."""

    def __init__(self) -> None:
        self.number: dict[ir.Value, int] = {}
        self.first: dict[Key, ir.Operation] = {}
        self.behind: set[ir.Value] = set()
        self.repeated: dict[ir.Operation, ir.Operation] = {}
        self.equal: dict[ir.Operation, ir.Operation] = {}

    def add(self, op: ir.Operation) -> None:
        if op.name == BARRIER:
            for operand, result in zip(op.operands, op.results, strict=True):
                self.number[result] = self.of(operand)
            self.behind.update(op.results)
            return
        # What is not pure repeats nothing, and nothing repeats it.
        first = self.first.setdefault(self.key(op, {}), op) if is_pure(op) else op
        is_behind = any(value in self.behind for value in reads(op))
        if first != op:
            (self.repeated if is_behind else self.equal)[op] = first
        if is_behind:
            self.behind.update(op.results)
        for result, known in zip(op.results, first.results, strict=True):
            self.number[result] = self.of(known)

    def of(self, value: ir.Value) -> int:
        return self.number.setdefault(value, len(self.number))

    def key(self, op: ir.Operation, inner: dict[ir.Value, int]) -> Key:
        """What an operation computes. `inner` numbers the values of the regions that it is in, from
        -1 downwards: these are equal where the regions are."""
        attributes = tuple((name, _attribute(op, name)) for name in op.attributes if name != LAYER)
        # Numbers of regions begin at -1, so that none of them is false.
        operands = tuple(inner.get(value) or self.of(value) for value in op.operands)
        types = tuple(result.type for result in op.results)
        blocks = tuple(block for region in op.regions for block in region.blocks)
        return op.name, attributes, operands, types, tuple(self._block(b, inner) for b in blocks)

    def _block(self, block: ir.Block, inner: dict[ir.Value, int]) -> Key:
        for argument in block.arguments:
            inner[argument] = -1 - len(inner)
        rows: list[Key] = [tuple(argument.type for argument in block.arguments)]
        for view in block.operations:
            rows.append(self.key(view.operation, inner))
            for result in view.operation.results:
                inner[result] = -1 - len(inner)
        return tuple(rows)


def _attribute(op: ir.Operation, name: str) -> ir.Attribute | str:
    is_value = name == "value" and op.name == "stablehlo.constant"
    return constant_value(op) if is_value else op.attributes[name]


def is_pure(op: ir.Operation) -> bool:
    """Whether it gives the same whenever it is run."""
    if op.name == "stablehlo.rng":
        return False
    effect = op.attributes.get("has_side_effect", None)
    return effect is None or not ir.BoolAttr(effect).value
