"""How often keys have to go round for attention: what one turn of them can compute.

A value that is as large as the scores is made block by block and never as a whole. What leaves a
block are *sums*: over the keys (maximum and sum of a row, the product with values) or over the rows
(gradients of keys and values). A block that needs a finished sum waits for another turn, with two
exceptions, which make softmax one turn (online softmax: Milakov and Gimelshein, arXiv 1805.02867):

    exp(s - m), m a maximum over all keys   taken with the maximum so far, and what was summed up
                                            is rescaled when that grows
    e / l, l a sum over all keys            the row is divided behind the turn

The *level* of a value is the number of turns before it is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from shardopt.graph.op_graph import Op, OpGraph
from shardopt.solve.presets.attention_dims import AttentionDims

_PRODUCT = "dot_general"
_PASSING = frozenset({"convert", "negate"})
_SUMS = frozenset({"add", "maximum"})


@dataclass(frozen=True)
class BlockSum:
    """An operation that sums blocks up, over `keys` or over `rows`. It reads `value`, in which what
    is known of whole rows only behind the turn (`scales`: multiply or divide by which row value) is
    left out."""

    op: int
    over: Literal["keys", "rows"]
    value: int
    scales: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Shift:
    """exp(value - row), where `row` follows from the maximum that operation `maximum` takes in the
    same turn."""

    value: int
    row: int
    maximum: int


@dataclass(frozen=True)
class RingPass:
    """One turn. `rescaled` are the sums that the shifts by a running maximum go into."""

    level: int
    sums: tuple[BlockSum, ...]
    shifts: Mapping[int, Shift]  # by the exponential
    rescaled: Mapping[int, int]  # sum -> exponential


@dataclass(frozen=True)
class Ended:
    """Where recognition ended: at an operation, and why."""

    op: int
    reason: str


class RingAnalysis:
    """One place of attention. Values of blocks are those with rows and keys."""

    def __init__(self, graph: OpGraph, place: AttentionDims) -> None:
        self.graph, self.place = graph, place
        self.makers, self.ops = graph.producers(), place.ops
        self.blocks = frozenset(
            tensor
            for op in sorted(self.ops)
            if self._is_block(op)
            for tensor in graph.ops[op].results
        )
        self.levels = [0] * len(graph.tensors)
        self.shifts: dict[int, Shift] = {}
        self.sums: dict[int, tuple[int, BlockSum]] = {}

    def run(self) -> tuple[RingPass, ...] | Ended:
        if (ended := self._unknown()) is not None:
            return ended
        self._rank()
        turns = sorted({level for level, _ in self.sums.values()})
        passes = [self._pass(level) for level in turns]
        return next((each for each in passes if isinstance(each, Ended)), None) or tuple(
            each for each in passes if isinstance(each, RingPass)
        )

    # ---- what can be taken apart into blocks ----

    def _roles(self, index: int) -> tuple[int | None, int | None]:
        return self.place.factor(index, "rows"), self.place.factor(index, "keys")

    def _is_block(self, index: int) -> bool:
        op, (rows, keys) = self.graph.ops[index], self._roles(index)
        if op.rule is None or rows is None or keys is None:
            return False
        return rows not in op.rule.reduction and keys not in op.rule.reduction

    def _is_sum(self, index: int) -> bool:
        op = self.graph.ops[index]
        return any(tensor in self.blocks for tensor in op.operands) and not self._is_block(index)

    def _unknown(self) -> Ended | None:
        for index in sorted(self.ops):
            op = self.graph.ops[index]
            if self._is_block(index) and op.name == "reduce":
                return Ended(index, "it sums scores of several heads or examples")
            if self._is_sum(index) and (reason := self._why_no_sum(index, op)):
                return Ended(index, reason)
        for tensor in sorted(self.blocks):
            if tensor in self.graph.outputs:
                return Ended(self.makers[tensor], "its result, which has all scores, is a result")
            for reader in self.graph.consumers()[tensor]:
                if reader not in self.ops:
                    return Ended(reader, "it reads all scores")
        return None

    def _why_no_sum(self, index: int, op: Op) -> str:
        rows, keys = self._roles(index)
        assert op.rule is not None
        if op.name == _PRODUCT:
            return "" if {rows, keys} & op.rule.reduction else "it contracts neither rows nor keys"
        if op.name != "reduce" or len(op.results) != 1:
            return "it is no sum of scores"
        if op.rule.reduction != {keys}:
            return "it sums scores over more than the keys"
        return "" if op.reducer in _SUMS else "it is neither a sum nor a maximum"

    # ---- levels ----

    def _rank(self) -> None:
        for index, op in enumerate(self.graph.ops):
            level = max((self.levels[tensor] for tensor in op.operands), default=0)
            if index in self.ops and self._is_sum(index):
                turn, each = self._sum(index, op)
                self.sums[index] = turn, each
                rows = [self.levels[row] for _, row in each.scales]
                level = max([turn + 1, *rows])
            elif index in self.ops and op.name == "exponential":
                level = self._shifted(index, op, level)
            for result in op.results:
                self.levels[result] = level

    def _sum(self, index: int, op: Op) -> tuple[int, BlockSum]:
        value = next(tensor for tensor in op.operands if tensor in self.blocks)
        others = [self.levels[t] for t in op.operands if t != value]
        rows, _ = self._roles(index)
        assert op.rule is not None
        over: Literal["keys", "rows"] = "rows" if rows in op.rule.reduction else "keys"
        turn, scales = self.levels[value], list[tuple[str, int]]()
        if over == "keys" and op.reducer == "add":
            turn, scales = self._core(value)
        turn = max([turn, *others])
        kept = tuple(each for each in scales if self.levels[each[1]] > turn)
        return turn, BlockSum(index, over, value, kept)

    def _core(self, tensor: int) -> tuple[int, list[tuple[str, int]]]:
        """The level of a block without the values of rows that can be applied behind the turn."""
        step = self.step(tensor)
        if step is None:
            return self.levels[tensor], []
        inner, others, row = step
        level, scales = self._core(inner)
        level = max([level, *(self.levels[other] for other in others)])
        if row is not None:
            name = self.graph.ops[self.makers[tensor]].name
            scales = [*scales, (name, row)]
        return level, scales

    def step(self, tensor: int) -> tuple[int, list[int], int | None] | None:
        """Of a value that is linear in another block: that one, what else it is made of, and the
        row value that scales it, if one does."""
        maker = self.makers[tensor]
        if maker not in self.ops or tensor not in self.blocks:
            return None
        op = self.graph.ops[maker]
        if op.name in _PASSING:
            return op.operands[0], [], None
        if op.name in ("divide", "multiply"):
            for first, second in ((0, 1), (1, 0))[: 1 if op.name == "divide" else 2]:
                inner, other = op.operands[first], op.operands[second]
                if inner not in self.blocks:
                    continue
                row = self.row_of(other)
                if row is not None and self.levels[row] > self.levels[inner]:
                    return inner, [], row
        return self._masked_or_weighted(op)

    def _masked_or_weighted(self, op: Op) -> tuple[int, list[int], int | None] | None:
        if op.name in ("divide", "multiply"):
            first, second = op.operands
            # The part that a shift goes into, or else the one that takes longer to be known.
            if (
                op.name == "multiply"
                and second in self.blocks
                and self._rank_of(second) > self._rank_of(first)
            ):
                first, second = second, first
            return (first, [second], None) if first in self.blocks else None
        if op.name == "select" and op.operands[1] in self.blocks and self._is_zero(op.operands[2]):
            return op.operands[1], [op.operands[0]], None
        return None

    def _rank_of(self, tensor: int) -> tuple[bool, int]:
        return bool(list(self._exponentials(tensor))), self.levels[tensor]

    def _shifted(self, index: int, op: Op, level: int) -> int:
        maker = self.makers[op.operands[0]]
        if maker not in self.ops or self.graph.ops[maker].name != "subtract":
            return level
        value, other = self.graph.ops[maker].operands
        row = self.row_of(other)
        if row is None or value not in self.blocks or self.levels[row] != self.levels[value] + 1:
            return level
        maxima = [k for k in self._sums_before(row) if self.graph.ops[k].reducer == "maximum"]
        if len(maxima) != 1 or self.sums[maxima[0]][0] != self.levels[value]:
            return level
        self.shifts[index] = Shift(value, row, maxima[0])
        return self.levels[value]

    def row_of(self, tensor: int) -> int | None:
        """The value of rows that a block repeats along the keys, if it is one."""
        while tensor in self.blocks or self.makers[tensor] in self.ops:
            op = self.graph.ops[self.makers[tensor]]
            if self._is_sum(self.makers[tensor]):
                return tensor
            if op.name not in ("broadcast_in_dim", "reshape", "convert"):
                return tensor if tensor not in self.blocks else None
            if tensor not in self.blocks and op.name == "convert":
                return tensor
            tensor = op.operands[0]
        return None

    def _sums_before(self, row: int) -> Iterator[int]:
        """The sums that a value of rows is made of."""
        seen, pending = set[int](), [row]
        while pending:
            maker = self.makers[pending.pop()]
            if maker in self.sums:
                yield maker
            elif maker in self.ops and maker not in seen:
                seen.add(maker)
                pending += self.graph.ops[maker].operands

    # ---- turns ----

    def _pass(self, level: int) -> RingPass | Ended:
        sums = [each for its, each in self.sums.values() if its == level]
        shifts = {
            op: shift for op, shift in self.shifts.items() if self.levels[shift.row] == level + 1
        }
        rescaled: dict[int, int] = {}
        for each in sums:
            used = {e for e in self._exponentials(each.value) if e in shifts}
            if not used:
                continue
            if len(used) > 1 or not self._is_linear(each.value, min(used)) or each.over == "rows":
                return Ended(each.op, "it is not linear in the exponentials of the scores")
            rescaled[each.op] = min(used)
        return RingPass(level, tuple(sorted(sums, key=lambda s: s.op)), shifts, rescaled)

    def _exponentials(self, tensor: int) -> Iterator[int]:
        """Those with a shift that a block is made of."""
        seen, pending = set[int](), [tensor]
        while pending:
            tensor = pending.pop()
            if tensor not in self.blocks or tensor in seen:
                continue
            seen.add(tensor)
            maker = self.makers[tensor]
            if maker in self.shifts:
                yield maker
            pending += self.graph.ops[maker].operands

    def _is_linear(self, tensor: int, exponential: int) -> bool:
        while self.makers[tensor] != exponential:
            step = self.step(tensor)
            if step is None or any(exponential in self._exponentials(o) for o in step[1]):
                return False
            tensor = step[0]
        return True

    def _is_zero(self, tensor: int) -> bool:
        while self.makers[tensor] >= 0:
            op = self.graph.ops[self.makers[tensor]]
            if op.zero or op.name != "broadcast_in_dim":
                return op.zero
            tensor = op.operands[0]
        return False

    @cached_property
    def rows_to(self) -> Mapping[int, Mapping[int, tuple[int | None, ...]]]:
        """For each value of rows that a turn scales or shifts by, and each operation that sums:
        which dimension of the former each dimension of the result is."""
        rows = {row for _, each in self.sums.values() for _, row in each.scales}
        rows |= {shift.row for shift in self.shifts.values()}
        return {row: self._dims_from(row) for row in sorted(rows)}

    def _dims_from(self, row: int) -> dict[int, tuple[int | None, ...]]:
        known: dict[int, tuple[int | None, ...]] = {
            row: tuple(range(len(self.graph.tensors[row].shape)))
        }
        found: dict[int, tuple[int | None, ...]] = {}
        for index in sorted(self.ops):
            op = self.graph.ops[index]
            if op.rule is None:
                continue
            dims: dict[int, int | None] = {}
            for tensor, mapping in zip(op.operands, op.rule.operands, strict=False):
                for factors, dim in zip(mapping, known.get(tensor, ()), strict=False):
                    dims |= dict.fromkeys((f for f in factors if op.rule.sizes[f] > 1), dim)
            if not dims:
                continue
            for result, mapping in zip(op.results, op.rule.results, strict=True):
                made = tuple(
                    next((dims[f] for f in factors if dims.get(f) is not None), None)
                    for factors in mapping
                )
                if index in self.sums:
                    found[index] = made
                else:
                    known.setdefault(result, made)
        return found
