"""Parts of the batch that a program handles one after the other, each by a copy of the same
operations, as a loop of Python leaves them, or one that is written out.

    %p0 = slice %x [0:4]        %p1 = slice %x [4:8]
    %l0 = loss %p0, %w          %l1 = loss %p1, %w
    %g0 = gradient …            %g1 = gradient …
                  %g = add %g0, %g1

An operation belongs to a part if of all slices it depends on that part's alone. Copies are equal if
they compute the same of their slice: values are numbered as if all parts were one
(`shardopt.extract.repeated_ops`), so that neither order nor names matter. What leaves the copies is
added up, or is stacked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod

from jaxlib.mlir import ir

from shardopt.extract.accumulation import (
    PRODUCTS,
    ancestors,
    has_most_work,
    state_numbers,
    state_shapes,
    unconverted,
)
from shardopt.extract.op_graph import read_reducer, reads, upstream
from shardopt.extract.repeated_ops import Key, Numbering, is_pure
from shardopt.ir.rewriting import BARRIER, defining, operations, shape_of
from shardopt.ir.shapes import dimensions

_ADD = "stablehlo.add"
# Values between an input and what is sliced of it.
_MAX_STEPS = 64
_SLICE = ("start_indices", "strides")


@dataclass(frozen=True)
class PartSlice:
    """`op` takes part `number` of `source`: `size` elements along `dim`."""

    op: ir.Operation
    source: ir.Value
    dim: int
    size: int
    number: int


@dataclass(frozen=True)
class PartSum:
    """`total` adds up what all copies make of one value, and `start` if there is one; where they
    make rows of a stack, dimensions of one element may be left out. `added` are the operations that
    do."""

    total: ir.Value
    start: ir.Value | None
    added: tuple[ir.Operation, ...]


@dataclass(frozen=True)
class PartCopies:
    """`count` copies: the operations of each, its slices, and the values that leave it, in equal
    order, but for those of no part, which a barrier only hands on; `sums` by the number of such a
    value; all others are stacked. `behind` depends on several parts."""

    count: int
    copies: tuple[tuple[ir.Operation, ...], ...]
    slices: tuple[PartSlice, ...]
    leaving: tuple[tuple[ir.Value, ...], ...]
    sums: Mapping[int, PartSum]
    behind: tuple[ir.Operation, ...]


def find_part_copies(main: ir.Operation) -> PartCopies | None:
    """Copies that sum up what has the shape of state, and do most of the work of the step."""
    *ops, end = (view.operation for view in main.regions[0].blocks[0].operations)
    groups: dict[int, list[PartSlice]] = defaultdict(list)
    for group in _groups(main, ops):
        groups[1 + max(each.number for each in group)] += group
    for slices in groups.values():
        # Others, such as halves of features, may stand beside those of the batch.
        leading = [each for each in slices if each.dim == 0]
        for chosen in (slices, leading) if 0 < len(leading) < len(slices) else (slices,):
            found = _Reader(ops, end, chosen).read()
            if found is not None and _is_accumulation(main, ops, found):
                return found
    return None


def _groups(main: ir.Operation, ops: Sequence[ir.Operation]) -> list[list[PartSlice]]:
    """Slices that together are all of one value, which is near the inputs and made of no state, or
    are random keys; none if they are all keys."""
    state = state_numbers(main)
    slices = [
        each
        for op in ops
        if (each := _part_slice(op)) and (_is_keys(each.source) or _is_brought(each.source, state))
    ]
    if all(_is_keys(each.source) for each in slices):
        return []
    numbering = Numbering()
    for op in ops:
        numbering.add(op)
    groups: dict[tuple[int, int, int], list[PartSlice]] = defaultdict(list)
    for each in slices:
        groups[numbering.of(each.source), each.dim, each.size].append(each)
    return [
        group
        for (_, dim, size), group in groups.items()
        if len({each.number for each in group}) * size == shape_of(group[0].source)[dim]
    ]


def _is_keys(value: ir.Value) -> bool:
    """Whether it may be several random keys."""
    tensor = ir.RankedTensorType(value.type)
    return str(tensor.element_type) == "ui32" and tensor.rank > 1


def _is_brought(value: ir.Value, state: Set[int]) -> bool:
    """Whether a few operations make it of arguments that are no state, and of no single key, whose
    halves are no parts."""
    tensor = ir.RankedTensorType(value.type)
    if str(tensor.element_type) == "ui32" and tensor.rank < 2:
        return False
    arguments = 0
    for steps, source in enumerate(upstream(value)):
        if steps == _MAX_STEPS:
            return False
        if isinstance(source, ir.BlockArgument):
            if source.arg_number in state:
                return False
            arguments += 1
    return arguments > 0


def _part_slice(op: ir.Operation) -> PartSlice | None:
    if op.name != "stablehlo.slice":
        return None
    starts, strides = (list(ir.DenseI64ArrayAttr(op.attributes[n])) for n in _SLICE)
    source = op.operands[0]
    whole, part = shape_of(source), shape_of(op.results[0])
    dims = [dim for dim, sizes in enumerate(zip(whole, part, strict=True)) if len({*sizes}) > 1]
    if len(dims) != 1 or set(strides) != {1}:
        return None
    dim = dims[0]
    if not part[dim] or whole[dim] % part[dim] or starts[dim] % part[dim]:
        return None
    return PartSlice(op, source, dim, part[dim], starts[dim] // part[dim])


class _Parts(Numbering):
    """Numbers values as if all parts were one."""

    def __init__(self, slices: Sequence[PartSlice]) -> None:
        super().__init__()
        self.slices = {each.op: each for each in slices}

    def of(self, value: ir.Value) -> int:
        return super().of(unconverted(value))

    def key(self, op: ir.Operation, inner: dict[ir.Value, int]) -> Key:
        each = self.slices.get(op)
        if each is None:
            return super().key(op, inner)
        return "part", self.of(each.source), each.dim, each.size


class _Reader:
    def __init__(
        self, ops: Sequence[ir.Operation], end: ir.Operation, slices: Sequence[PartSlice]
    ) -> None:
        self.ops, self.end, self.slices = ops, end, slices
        self.count = 1 + max(each.number for each in slices)
        self.numbering = _Parts(slices)
        # Of a value, the parts that it depends on, as bits.
        self.parts: dict[ir.Value, int] = {}
        self.of_op: dict[ir.Operation, int] = {}
        number = {each.op: each.number for each in slices}
        for op in ops:
            self.numbering.add(op)
            bits = 1 << number[op] if op in number else 0
            for value in reads(op):
                bits |= self.parts.get(value, 0)
            self.of_op[op] = bits
            self.parts.update(dict.fromkeys(op.results, bits))
            if op.name == BARRIER:  # what it only hands on is of no part
                self.parts.update(
                    (result, self.parts.get(value, 0))
                    for value, result in zip(op.operands, op.results, strict=True)
                )

    def read(self) -> PartCopies | None:
        copies = self._copies()
        inside = {op for copy in copies for op in copy}
        behind = [op for op in self.ops if self._parts(op) and op not in inside]
        leaving = [self._leaving(copy) for copy in copies]
        numbers = list(leaving[0])
        is_pure_copy = all(is_pure(inner) for op in copies[0] for inner in operations(op))
        if not is_pure_copy or any(set(each) != set(numbers) for each in leaving):
            return None
        values = tuple(tuple(each[number] for number in numbers) for each in leaving)
        sums = {
            number: total
            for number, terms in enumerate(zip(*values, strict=True))
            if (total := self._sum(terms, set(behind))) is not None
        }
        return PartCopies(
            count=self.count,
            copies=tuple(map(tuple, copies)),
            slices=tuple(self.slices),
            leaving=values,
            sums=sums,
            behind=tuple(behind),
        )

    def _copies(self) -> list[list[ir.Operation]]:
        """The operations of each part that all parts have. What only one has, such as the addition
        of its term to what the sum begins with, is behind them."""
        of_part = [
            [op for op in self.ops if self._parts(op) == 1 << part] for part in range(self.count)
        ]
        common = set.intersection(*({self._number(op) for op in part} for part in of_part))
        return [[op for op in part if self._number(op) in common] for part in of_part]

    def _number(self, op: ir.Operation) -> int:
        return self.numbering.of(op.results[0])

    def _parts(self, op: ir.Operation) -> int:
        return self.of_op[op]

    def _leaving(self, copy: Sequence[ir.Operation]) -> dict[int, ir.Value]:
        """Number -> value, of those that are read outside of the copy."""
        inside = set(copy)
        found: dict[int, ir.Value] = {}
        for op in copy:
            for result in op.results:
                is_read = any(
                    owner_beside(use.owner, self.end) not in inside for use in result.uses
                )
                if is_read and self.parts[result]:
                    found.setdefault(self.numbering.of(result), result)
        return found

    def _sum(self, terms: Sequence[ir.Value], behind: Set[ir.Operation]) -> PartSum | None:
        return self._tree(terms, behind) or self._stack(terms)

    def _stack(self, terms: Sequence[ir.Value]) -> PartSum | None:
        """The sum over the rows of a stack whose rows are the terms, in any order:

        concatenate (reshape %g0), (reshape %g1)  ─▶  reduce add over dimension 0"""
        added = list[ir.Operation]()
        rows = set[ir.Value]()
        for term in terms:
            user = _only_user(term)
            if user is not None and user.name == "stablehlo.reshape":
                added.append(user)
                term = user.results[0]
            rows.add(term)
        stack = _only_user(term)
        if stack is None or stack.name != "stablehlo.concatenate" or set(stack.operands) != rows:
            return None
        total = _only_user(stack.results[0])
        size = prod(shape_of(terms[0]))
        if total is None or not _sums_rows(total) or prod(shape_of(total.results[0])) != size:
            return None
        return PartSum(total.results[0], None, (*added, stack, total))

    def _tree(self, terms: Sequence[ir.Value], behind: Set[ir.Operation]) -> PartSum | None:
        """The tree of additions that takes each of the terms once, and nothing else but a start."""
        total = terms[0]
        leaves, added = [total], list[ir.Operation]()
        while not set(terms) <= set(leaves):
            user = _only_user(total)
            if user is None or user.name != _ADD:
                return None
            total = user.results[0]
            leaves, added = _leaves(user, set(terms), behind)
        rest = [leaf for leaf in leaves if leaf not in terms]
        is_once = len(leaves) == len(terms) + len(rest)
        if not is_once or len(rest) > 1 or any(self.parts.get(leaf, 0) for leaf in rest):
            return None
        return PartSum(total, rest[0] if rest else None, tuple(added))


def _sums_rows(op: ir.Operation) -> bool:
    """Whether it is a sum from zero over dimension 0, and no other."""
    if op.name != "stablehlo.reduce" or len(op.operands) != 2:
        return False
    return dimensions(op, "dimensions") == (0,) and read_reducer(op) == "add"


def _leaves(
    root: ir.Operation, terms: Set[ir.Value], behind: Set[ir.Operation]
) -> tuple[list[ir.Value], list[ir.Operation]]:
    """What a tree of additions adds up, and its operations."""
    leaves, added, pending = list[ir.Value](), [root], list(root.operands)
    while pending:
        value = pending.pop()
        op = defining(value, _ADD)
        if value in terms or op is None or op not in behind or _only_user(value) is None:
            leaves.append(value)
            continue
        added.append(op)
        pending += op.operands
    return leaves, added


def owner_beside(op: ir.Operation | ir.OpView, end: ir.Operation) -> ir.Operation:
    """The operation of the block of `end` that holds an operation."""
    found = op.operation
    while found.block != end.block:
        assert found.parent is not None  # it reads a value of that block
        found = found.parent.operation
    return found


def _only_user(value: ir.Value) -> ir.Operation | None:
    users = [use.owner.operation for use in value.uses]
    return users[0] if len(users) == 1 else None


def _is_accumulation(main: ir.Operation, ops: Sequence[ir.Operation], found: PartCopies) -> bool:
    summed = {shape_of(each.total) for each in found.sums.values()}
    inside = [op for copy in found.copies for op in copy]
    before = ancestors(ops, [value for op in found.copies[0] for value in reads(op)])
    before = [op for op in before if op not in set(found.copies[0])]
    return (
        bool(summed & state_shapes(main))
        and not any(operations(op, PRODUCTS) for op in before)
        and has_most_work(inside, ops)
    )
