"""Fewer functions, operations and regions, and smaller constants."""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.ir.rewriting import (
    functions,
    operations,
    replace_op,
    splice_block,
    symbol_name,
)
from shardopt.ir.splats import is_splat, splat_constant
from shardopt.reduce.candidate import Subject
from shardopt.reduce.edits import (
    CONSTANT,
    FUNCTION,
    Preference,
    StandIns,
    calls_in,
    drop_op,
    drop_ops,
    end_of,
    entry,
    is_inside,
    is_read,
)

_MODULE = "builtin.module"


class DropFunctions:
    """Erases functions; constants stand in for what their calls gave."""

    name = "functions"

    def places(self, subject: Subject) -> int:
        return len(list(functions(subject.module)))

    def apply(self, subject: Subject, chosen: range) -> None:
        victims = [each for k, each in enumerate(functions(subject.module)) if k in chosen]
        stand_ins = StandIns(("constant", "operand", "argument"))
        names = {symbol_name(each) for each in victims}
        calls = calls_in(subject.module.operation)
        for name in sorted(names):
            for call in calls.get(name, []):
                if not is_inside(call, victims):
                    drop_op(call, stand_ins)
        stand_ins.finish()
        for each in victims:
            each.erase()


@dataclass(frozen=True)
class DropOps:
    """Erases operations with all that only they read. In the place of a result that is read comes
    an operand of the same type, a constant or a new argument, whichever stands first in
    `order`. With `keeps_unread` what only they read stays: the fault may be in who reads it."""

    order: tuple[Preference, ...]
    keeps_unread: bool = False

    @property
    def name(self) -> str:
        return f"operations {'alone ' if self.keeps_unread else ''}by {self.order[0]}s"

    def places(self, subject: Subject) -> int:
        return len(_droppable(subject.module))

    def apply(self, subject: Subject, chosen: range) -> None:
        ops = _droppable(subject.module)
        drop_ops([ops[k] for k in chosen], self.order, self.keeps_unread)


class HoistRegions:
    """Puts the body of a region in the place of the operation around it: of a loop, a branch, or a
    function that is called once. Only where the types on both sides are the same."""

    name = "regions"

    def places(self, subject: Subject) -> int:
        return len(_hoistable(subject.module))

    def apply(self, subject: Subject, chosen: range) -> None:
        blocks = _hoistable(subject.module)
        for k in chosen:  # inner ones stand before those around them
            op, block = blocks[k]
            function = block.owner.operation if op.name.endswith("call") else None
            _, end = splice_block(block, list(op.operands)[: len(block.arguments)], op)
            replace_op(op, list(end.operands))
            if function is not None:
                function.erase()


class MergeConstants:
    """Reads equal constants of a block from the first of them. (Passes that do so merge other
    operations, too.)"""

    name = "equal constants"

    def places(self, subject: Subject) -> int:
        return len(_repeated_constants(subject.module))

    def apply(self, subject: Subject, chosen: range) -> None:
        repeated = _repeated_constants(subject.module)
        for k in chosen:
            op, first = repeated[k]
            op.results[0].replace_all_uses_with(first.results[0])
            op.erase()


class ShrinkConstants:
    """Makes all elements of a constant zero, which prints on one line."""

    name = "constants"

    def places(self, subject: Subject) -> int:
        return len(_large_constants(subject.module))

    def apply(self, subject: Subject, chosen: range) -> None:
        constants = _large_constants(subject.module)
        for k in chosen:
            op = constants[k]
            with ir.InsertionPoint(op):
                value = splat_constant(op.results[0].type, 0)
            op.results[0].replace_all_uses_with(value)
            op.erase()


def _droppable(module: ir.Module) -> list[ir.Operation]:
    """In the order of the text: what ends no block, makes no symbol, and is no constant that a
    stand-in would replace by itself."""
    return [
        op
        for op in operations(module.operation, outer_first=True)
        if op.name not in (_MODULE, FUNCTION)
        and not _ends_block(op)
        and (op.name != CONSTANT or not is_read(op.results[0]))
    ]


def _ends_block(op: ir.Operation) -> bool:
    """Whether it is a terminator; only modules have blocks without."""
    return not len(op.results) and op.block.owner.name != _MODULE and op == end_of(op.block)


def _hoistable(module: ir.Module) -> list[tuple[ir.Operation, ir.Block]]:
    """Operations with the block that may take their place."""
    calls = calls_in(module.operation)
    called_once = {
        name: next(each for each in functions(module) if symbol_name(each) == name)
        for name, ops in calls.items()
        if len(ops) == 1 and any(symbol_name(each) == name for each in functions(module))
    }
    pairs = []
    for op in operations(module.operation):
        if op.name in (_MODULE, FUNCTION):
            continue
        blocks = [region.blocks[0] for region in op.regions if len(region.blocks) == 1]
        if "callee" in op.attributes:
            callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            function = called_once.get(callee)
            blocks = [entry(function)] if function and len(function.regions[0].blocks) else []
        pairs += [(op, block) for block in blocks if _fits(op, block)][-1:]
    return pairs


def _fits(op: ir.Operation, block: ir.Block) -> bool:
    """Whether operands may stand for the arguments of the block, and what it returns for the
    results."""
    inputs = [value.type for value in op.operands][: len(block.arguments)]
    if [argument.type for argument in block.arguments] != inputs:
        return False
    returned = [value.type for value in end_of(block).operands]
    return returned == [result.type for result in op.results]


def _large_constants(module: ir.Module) -> list[ir.Operation]:
    return [op for op in operations(module.operation, (CONSTANT,)) if not _is_splat(op)]


def _repeated_constants(module: ir.Module) -> list[tuple[ir.Operation, ir.Operation]]:
    """Constants, and the equal one that stands first in their block."""
    first: dict[tuple[ir.Block, ir.Attribute], ir.Operation] = {}
    pairs = []
    for op in operations(module.operation, (CONSTANT,)):
        made = first.setdefault((op.block, op.attributes["value"]), op)
        if made != op:
            pairs.append((op, made))
    return pairs


def _is_splat(op: ir.Operation) -> bool:
    if isinstance(op.attributes["value"], ir.DenseResourceElementsAttr):
        return False
    return is_splat(op)
