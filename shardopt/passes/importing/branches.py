"""A conditional with several results as several conditionals, so that each may stand where its
result is used."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from jaxlib.mlir import ir

from shardopt.extract.op_graph import free_values
from shardopt.ir.rewriting import defining, operations, terminator

# Running these a second time is no way to compute the same: they have effects, or hold what only
# they were given.
RUN_ONCE = (
    "stablehlo.custom_call",
    "stablehlo.infeed",
    "stablehlo.outfeed",
    "stablehlo.recv",
    "stablehlo.rng",
    "stablehlo.send",
    "sdy.sharding_constraint",
)
# As large as what reads them, but made from nothing large.
_MADE = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.iota"})


def split_results(op: ir.Operation) -> int:
    """Replace a `case` or `if` by one for each group of results that no branch computes together;
    how many there are.

    Scalars and what is made of them are recomputed by every group that reads them.
    """
    groups = [] if operations(op, RUN_ONCE) else _groups(op)
    if len(groups) < 2:
        return 1
    for group in groups:
        part = _part(op, group)
        for number, result in zip(group, part.results, strict=True):
            op.results[number].replace_all_uses_with(result)
    op.erase()
    return len(groups)


def _groups(op: ir.Operation) -> list[list[int]]:
    """Numbers of results, in order, apart where no branch has a large operation behind both."""
    root = list(range(len(op.results)))

    def find(number: int) -> int:
        while root[number] != number:
            number = root[number]
        return number

    for region in op.regions:
        block = region.blocks[0]
        owner: dict[ir.Operation, int] = {}
        for number, value in enumerate(terminator(block).operands):
            for inner in _behind(value, block, owner):
                first, second = sorted((find(number), find(owner.setdefault(inner, number))))
                root[second] = first
    groups: dict[int, list[int]] = {}
    for number in range(len(root)):
        groups.setdefault(find(number), []).append(number)
    return list(groups.values())


def _behind(value: ir.Value, block: ir.Block, owner: dict[ir.Operation, int]) -> list[ir.Operation]:
    """The large operations of the block that a value is computed from, up to those that have an
    owner."""
    large: list[ir.Operation] = []
    seen: set[ir.Operation] = set()
    pending = [value]
    while pending:
        op = defining(pending.pop())
        if op is None or op in seen or op.block != block:
            continue
        seen.add(op)
        if _is_large(op):
            large.append(op)
        # What stands behind an owner is in its group: walking it for each result would be
        # quadratic.
        if op not in owner:
            pending += [*op.operands, *(free_values(op) if len(op.regions) else ())]
    return large


def _is_large(op: ir.Operation) -> bool:
    types = [result.type for result in op.results if isinstance(result.type, ir.RankedTensorType)]
    return op.name not in _MADE and any(prod(type_.shape) != 1 for type_ in types)


def _part(op: ir.Operation, numbers: Sequence[int]) -> ir.Operation:
    """A copy in front of `op` that has only these results, and in its branches what they need."""
    with ir.InsertionPoint(op):
        # Branches are moved out of a copy, as the next groups need the original ones.
        whole = op.clone()
        attributes = {name: op.attributes[name] for name in op.attributes}
        part = ir.Operation.create(
            op.name,
            [op.results[number].type for number in numbers],
            list(op.operands),
            attributes,
            regions=len(op.regions),
            loc=op.location,
        )
    for old, new in zip(whole.regions, part.regions, strict=True):
        block = old.blocks[0]
        block.append_to(new)
        operands = list(terminator(block).operands)
        yield_values(block, [operands[number] for number in numbers])
    whole.erase()
    return part


def yield_values(block: ir.Block, values: Sequence[ir.Value]) -> None:
    """Let a branch yield these values in place of those that it yields, and drop what they do not
    need."""
    end = terminator(block)
    ir.Operation.create(end.name, [], list(values), loc=end.location, ip=ir.InsertionPoint(end))
    end.erase()
    drop_unread(block)


def drop_unread(block: ir.Block) -> None:
    *body, _ = (view.operation for view in block.operations)
    # Readers before what they read, so that one sweep drops whole chains.
    for inner in reversed(body):
        if not any(True for result in inner.results for _ in result.uses):
            inner.erase()
