"""Loops and branches as ordinary operations of the op graph, so that what is inside of them can be
sharded.

    %r = stablehlo.while(%i = %c, %a = %x)         %s = custom_call @Sharding(%x)     (added)
      cond { … } do {                              %r = stablehlo.while(%i = %c, %a = %s)
        %b = stablehlo.dot_general %a, %w            cond { … } do {
        return %j, %b }                       =>       %b = stablehlo.dot_general %a, %w
                                                       %t = custom_call @Sharding(%b) (added)
                                                       return %j, %t }

A carried value is one buffer: what enters the loop, the argument of its regions, what the body
yields and the result have one sharding. `mark_carried` puts an identity where a value enters that
buffer, which is where it may be resharded: once before the loop, and once in every iteration.
`RegionReader` then reads the regions in program order, with the operations of a body repeated as
often as it runs. A value that the body hands on unchanged is no different from one that the regions
capture: whoever reads it in the body reshards it there.

The results of a branch are tied to what each branch yields, through identities for the same reason.
Every branch is counted as if it ran: which one will, nobody knows, and the sum keeps dear
collectives out of all of them."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from shardopt.dialect.manual import is_inside
from shardopt.extract.op_graph import CHEAP_TO_CLONE, GraphReader, free_values
from shardopt.ir.loops import BRANCHES, CONTROL_FLOW, MAX_COUNTED, UNKNOWN_TRIPS, WHILE, trip_count
from shardopt.ir.rewriting import BARRIER, defining, identity, operations, terminator
from shardopt.mesh.mesh import Sharding

# Operations that may write over an operand, and whose result has its sharding.
_UPDATES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "add",
        "and",
        "dynamic_update_slice",
        "maximum",
        "minimum",
        "multiply",
        "or",
        "scatter",
        "subtract",
    )
)


def planned_operations(block: ir.Block) -> list[ir.Operation]:
    """The operations that `RegionReader` reads of a block, and the loops and branches around them,
    in program order."""
    planned = []
    for view in block.operations:
        op = view.operation
        planned.append(op)
        if op.name in CONTROL_FLOW:
            planned += [
                inner for region in op.regions for inner in planned_operations(region.blocks[0])
            ]
    return planned


def numbered_operations(block: ir.Block) -> list[ir.Operation]:
    """The operations of a block that have a choice of shardings, in the order in which
    `RegionReader` numbers them: instead of loops and branches those of their regions, and no
    barriers."""
    *body, _ = (view.operation for view in block.operations)
    numbered = []
    for op in body:
        if op.name in CONTROL_FLOW:
            numbered += [
                inner for region in op.regions for inner in numbered_operations(region.blocks[0])
            ]
        elif op.name != BARRIER:
            numbered.append(op)
    return numbered


def _planned_control_flow(root: ir.Operation) -> list[ir.Operation]:
    """Loops and branches whose values have a choice of shardings."""
    return [op for op in operations(root, CONTROL_FLOW) if not is_inside(op)]


def mark_carried(root: ir.Operation) -> int:
    """Insert the identities into all loops and branches inside of `root`; how many there are."""
    count = 0
    for op in _planned_control_flow(root):
        if op.name == WHILE:
            count += _mark_loop(op)
        else:
            ends = [terminator(region.blocks[0]) for region in op.regions]
            count += sum(
                _mark(end, position) for end in ends for position in range(len(end.operands))
            )
    return count


def _mark_loop(loop: ir.Operation) -> int:
    body, count = loop.regions[1].blocks[0], 0
    end = terminator(body)
    for position, argument in enumerate(body.arguments):
        yielded = end.operands[position]
        if yielded != argument:
            count += _mark(loop, position)
            if not _is_update(yielded, argument):
                count += _mark(end, position)
    return count


def _is_update(value: ir.Value, argument: ir.Value) -> bool:
    """Whether an operation changes the carried value in its place, such as a stack of results or a
    sum: nothing is won by resharding between the two."""
    op = defining(value)
    return op is not None and op.name in _UPDATES and argument in list(op.operands)


def _mark(op: ir.Operation, position: int) -> bool:
    """Put an identity in front of an operand, if it has a choice of shardings."""
    value = op.operands[position]
    if _is_tensor(value):
        op.operands[position] = identity(value, op.location, ir.InsertionPoint(op)).result
    return _is_tensor(value)


def _is_tensor(value: ir.Value) -> bool:
    """Whether there is a choice of shardings: scalars and tokens have but one."""
    return isinstance(value.type, ir.RankedTensorType) and ir.RankedTensorType(value.type).rank > 0


def pin_values(
    root: ir.Operation, shardings: Mapping[ir.Value, Sharding]
) -> dict[ir.Value, Sharding]:
    """Insert identities behind all that enters a region and behind the results of loops and
    branches inside of `root`.

    The partitioner takes the sharding of a region's argument from its neighbours: all of them have
    to say the same, or it moves the planned resharding of a reader to another place. Returns the
    new values with their shardings."""
    pinned: dict[ir.Value, Sharding] = {}
    # What enters a region may be the identity behind an earlier loop.
    lies = ChainMap(pinned, dict(shardings))
    for op in _planned_control_flow(root):
        # Constants are made anew in every region.
        captured = [value for value in free_values(op) if _is_tensor(value) and not _is_made(value)]
        for block in (region.blocks[0] for region in op.regions):
            ip = ir.InsertionPoint.at_block_begin(block)
            entering = [value for value in (*block.arguments, *captured) if _is_tensor(value)]
            copies = {value: identity(value, op.location, ip) for value in entering}
            pinned |= {copy.result: lies[value] for value, copy in copies.items()}
            _replace_inside(block, copies)
        for result in filter(_is_tensor, op.results):
            copy = identity(result, op.location, ir.InsertionPoint.after(op))
            result.replace_all_uses_except(copy.result, copy)
            pinned[copy.result] = shardings[result]
    return pinned


def _is_made(value: ir.Value) -> bool:
    op = defining(value)
    return op is not None and op.name in CHEAP_TO_CLONE


def _replace_inside(block: ir.Block, copies: Mapping[ir.Value, ir.Operation]) -> None:
    made = {copy.result for copy in copies.values()}
    for view in block.operations:
        for op in operations(view):
            for position, operand in enumerate(op.operands):
                # The copies themselves go on reading the values that they stand for.
                if operand in copies and not any(result in made for result in op.results):
                    op.operands[position] = copies[operand].result


@dataclass
class RegionReader(GraphReader):
    """Reads the regions of loops and branches instead of the operations themselves, which have no
    entry in `ops`.

    `guessed` are the loops whose number of iterations is unknown; `fed_back` has, for each entry of
    `loops`, the pairs of what enters a loop and what takes its place in the next iteration.
    """

    ties: list[tuple[int, int]] = field(default_factory=list)
    guessed: list[ir.Operation] = field(default_factory=list)
    fed_back: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    blocks: int = 0

    def take_ties(self) -> list[tuple[int, int]]:
        """Pairs of tensors, found since the last call, that must have one sharding."""
        ties, self.ties = self.ties, []
        return ties

    def add_op(self, op: ir.Operation, group: int, repeat: int) -> None:
        name = op.name
        if name == WHILE:
            self._add_loop(op, group, repeat)
        elif name in BRANCHES:
            self._add_branches(op, group, repeat)
        else:
            super().add_op(op, group, repeat)

    def _add_loop(self, loop: ir.Operation, group: int, repeat: int) -> None:
        count = trip_count(loop, MAX_COUNTED)
        if count is None:
            self.guessed.append(loop)
        carried = [self.tensor(value) for value in loop.operands]
        waits = [self._waits([value]) for value in loop.operands]
        start, outer = len(self.ops), self.trips
        self.trips *= UNKNOWN_TRIPS if count is None else count
        for region in loop.regions:  # the condition, then the body
            for argument, tensor in zip(region.blocks[0].arguments, carried, strict=True):
                self.bind(argument, tensor)
            self.behind.update(
                (argument, behind)
                for argument, behind in zip(region.blocks[0].arguments, waits, strict=True)
                if behind
            )
            yielded = self._add_block(region.blocks[0], group, repeat)
        self.trips = outer
        self.loops.append((start, len(self.ops)))
        changed = zip(carried, yielded, strict=True)
        self.fed_back.append(tuple((k, after) for k, after in changed if k != after))
        # `yielded` is of the body, the last region: what the condition yields is not carried.
        for before, after, result in zip(carried, yielded, loop.results, strict=True):
            self.bind(result, after)
            self._tie(before, after)
            if before != after:
                self.carried.add(before)

    def _add_branches(self, op: ir.Operation, group: int, repeat: int) -> None:
        yielded = [self._add_block(region.blocks[0], group, repeat) for region in op.regions]
        for result, *tensors in zip(op.results, *yielded, strict=True):
            self.bind(result, tensors[0])
            for other in tensors[1:]:
                self._tie(tensors[0], other)

    def _tie(self, first: int, second: int) -> None:
        """Scalars and tokens, which have but one sharding, need none."""
        if first != second and self.tensors[first].shape:
            self.ties.append((first, second))

    def _add_block(self, block: ir.Block, group: int, repeat: int) -> Sequence[int]:
        """The tensors that the terminator returns."""
        outer = self.block
        self.blocks += 1
        self.block = self.blocks
        *body, end = (view.operation for view in block.operations)
        self.add_ops(body, group=group, repeat=repeat)
        self.block = outer
        return [self.tensor(value) for value in end.operands]
