"""In which order of their dimensions a GPU compiler keeps values in memory, and which it has to
write once more in another order.

    %s = dot_general %k, %q      [b, k, q, m]: keys, queries, m heads for a key
    %t = transpose %s            [b, m, q, k]: another name for the same memory
    %p = exponential %t          [b, m, q, k], written in the order of %s
    %o = dot_general %v, %p      contracts k, and has columns m, q: no matrix lies in the memory of
                                 %p, whose q comes before m

A library multiplies matrices: batch, rows and columns of an operand are dimensions that follow each
other in memory, each group in the order in which the result, or the other operand, has it; rows and
columns may change places, and either may surround the batch (`MatrixLayout::For`,
xla/service/gpu/matmul_utils.cc). It writes its result as it stands in the program. What loops
over elements keeps the order of what it reads, and a transposition is a change of name. Where
an operation of two operands finds them in two orders, the one that was made first decides, and the
other is written anew, as it is where a product finds no matrix (`GpuLayoutAssignment`,
xla/backends/gpu/transforms/layout_assignment.cc; each product asks for an order of its own). Only
a loop over elements writes its result in any order, and in several, at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from math import prod

from shardopt.graph.op_graph import FactorRule, Op, OpGraph

# The dimensions of a tensor that have more than one element, or their places, major to minor in
# memory.
Order = tuple[int, ...]


@dataclass(frozen=True)
class Rewrites:
    """`copies[i][k]` is how often operand k of operation i is copied in another order before the
    operation reads it; `more_writes[t]` in how many orders beside one the kernel that makes tensor
    t writes it. `strewn` and `strewn_writes` are how many of these end with a dimension so short
    that neighbours in memory come from far apart."""

    copies: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    more_writes: Mapping[int, int] = field(default_factory=dict)
    strewn: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    strewn_writes: Mapping[int, int] = field(default_factory=dict)


NO_REWRITES = Rewrites()

_VIEWS = frozenset(("transpose", "reshape"))
# What a GPU's memory moves at once. A kernel that writes fewer bytes in a row gathers them.
_SECTOR_BYTES = 32


@dataclass(frozen=True)
class _Reading:
    """Operation `op` wants its operand number `operand` in order `wanted`, and finds `found`. Both
    number dimensions of `shape`."""

    op: int
    operand: int
    found: Order
    wanted: Order
    shape: tuple[int, ...]

    @property
    def moves(self) -> Order:
        """Where in memory the dimensions are that are to follow each other, major to minor."""
        return tuple(map(self.found.index, self.wanted))

    def is_strewn(self, itemsize: float) -> bool:
        """Whether what moves comes to lie in pieces of less than a sector, which it did not."""
        run, before = (self.shape[order[-1]] for order in (self.wanted, self.found))
        return run < before and run * itemsize < _SECTOR_BYTES


@dataclass(frozen=True)
class MemoryOrders:
    """`orders[t]` is the order of tensor t, None where each reader makes it as it likes; `misfits`
    are operands that are not as they are wanted."""

    orders: tuple[Order | None, ...]
    misfits: tuple[_Reading, ...]


def find_memory_orders(graph: OpGraph, loops: Set[str], exempt: Set[int]) -> MemoryOrders:
    """Of operations with names in `loops`, a loop over the elements of the result computes it.
    `exempt` operations read and write in any order, such as kernels of attention."""
    orders: list[Order | None] = [_row_major(tensor.shape) for tensor in graph.tensors]
    # Which operation chose the order of a tensor; inputs were there before.
    chosen = list(graph.producers())
    misfits: list[_Reading] = []
    for index, op in enumerate(graph.ops):
        if op.name == "constant":
            orders[op.results[0]] = None
        if op.rule is None or index in exempt:
            continue
        if op.name == "dot_general" and _is_product(op.rule):
            for number, groups in enumerate(_matrix(op.rule)):
                order = orders[op.operands[number]]
                wanted = tuple(dim for group in groups for dim in group)
                if order is not None and not is_matrix(order, groups):
                    inside = tuple(dim for dim in wanted if dim in order)
                    shape = graph.tensors[op.operands[number]].shape
                    misfits.append(_Reading(index, number, order, inside, shape))
        elif op.name == "reshape" and (misfit := _reshaped(graph, index, orders)) is not None:
            misfits.append(misfit)
        elif op.name in loops or op.name in ("reduce", "dot_general"):
            found = {
                number: carried
                for number, operand in enumerate(op.operands)
                if (carried := _carried_by(graph, op, number, orders[operand])) is not None
            }
            first = min(found, key=lambda number: chosen[op.operands[number]], default=None)
            if first is None:
                if _is_free(graph, op, orders):
                    orders[op.results[0]] = None
                continue
            for result in op.results:
                orders[result], chosen[result] = found[first], chosen[op.operands[first]]
            misfits += [
                _Reading(index, number, carried, found[first], graph.tensors[op.results[0]].shape)
                for number, carried in found.items()
                if carried != found[first]
            ]
    return MemoryOrders(tuple(orders), tuple(misfits))


def _reshaped(graph: OpGraph, index: int, orders: Sequence[Order | None]) -> _Reading | None:
    """What a reshape wants whose result is not its operand under another name."""
    op = graph.ops[index]
    shape = graph.tensors[op.operands[0]].shape
    order, plain = orders[op.operands[0]], _row_major(shape)
    if order is None or order == plain or _carried_by(graph, op, 0, order) is not None:
        return None
    return _Reading(index, 0, order, plain, shape)


@cache
def _row_major(shape: tuple[int, ...]) -> Order:
    return tuple(dim for dim, extent in enumerate(shape) if extent > 1)


def _is_free(graph: OpGraph, op: Op, orders: Sequence[Order | None]) -> bool:
    """Whether all that a loop reads is smaller than its result, or made as it likes."""
    size = graph.tensors[op.results[0]].elements
    return all(
        orders[operand] is None or graph.tensors[operand].elements < size for operand in op.operands
    )


def _carried_by(graph: OpGraph, op: Op, number: int, order: Order | None) -> Order | None:
    """The order of the result if the operand keeps its own; None if the operand is not as large as
    what the operation goes over, or cannot keep it."""
    assert op.rule is not None, "the caller looks"
    if order is None:
        return None
    return _carried(op.rule, number, order, graph.tensors[op.results[0]].shape)


@cache
def _carried(rule: FactorRule, number: int, order: Order, shape: tuple[int, ...]) -> Order | None:
    factors = [factor for dim in order for factor in rule.operands[number][dim]]
    place = {factor: at for at, factor in enumerate(factors)}
    spans: list[tuple[int, int, int]] = []
    for dim, inside in enumerate(rule.results[0]):
        if shape[dim] == 1:
            continue
        kept = [place.get(factor, -1) for factor in inside if rule.sizes[factor] > 1]
        if not kept or kept[0] < 0 or kept != sorted(kept):
            return None
        spans.append((kept[0], kept[-1], dim))
    spans.sort()
    # Factors of two dimensions of the result must not alternate.
    if any(last > after for (_, last, _), (after, _, _) in pairwise(spans)):
        return None
    return tuple(dim for _, _, dim in spans)


Groups = tuple[Order, Order, Order]


@cache
def _is_product(rule: FactorRule) -> bool:
    """Whether a library computes it: products with vectors, and outer products, are loops."""
    return all(
        prod(rule.sizes[f] for dim in group for f in rule.operands[number][dim]) > 1
        for number, groups in enumerate(_matrix(rule))
        for group in groups[1:]
    )


@cache
def _matrix(rule: FactorRule) -> tuple[Groups, ...]:
    """For each operand of a product its dimensions of the batch, and those of rows and columns as a
    library has them by default: what is contracted comes last on the left, first on the right."""
    left, right = rule.operands[:2]
    of_result = [factor for dim in rule.results[0] for factor in dim]
    in_order = {f: n for n, f in enumerate((*of_result, *(f for dim in left for f in dim)))}
    both = {f for dim in left for f in dim} & {f for dim in right for f in dim}
    matrices = []
    for dims, contracted_first in ((left, False), (right, True)):
        batch: list[int] = []
        free: list[int] = []
        contracted: list[int] = []
        for dim, factors in enumerate(dims):
            if not factors:
                continue
            kind = free if factors[0] not in both else contracted
            (batch if factors[0] in both and factors[0] in of_result else kind).append(dim)
        for group in (batch, free, contracted):
            group.sort(key=lambda dim: in_order[dims[dim][0]])
        rows, columns = (contracted, free) if contracted_first else (free, contracted)
        matrices.append((tuple(batch), tuple(rows), tuple(columns)))
    return tuple(matrices)


@cache
def is_matrix(order: Order, groups: Groups) -> bool:
    """Whether each group follows in one piece, in its own order, and the batch is not innermost."""
    batch, *sides = (tuple(dim for dim in group if dim in order) for group in groups)
    rest = order
    pieces = []
    while rest:
        piece = next((g for g in (batch, *sides) if g and rest[: len(g)] == g), None)
        if piece is None:
            return False
        pieces.append(piece)
        rest = rest[len(piece) :]
    return len(pieces) == 1 or not batch or pieces[-1] != batch


def find_rewrites(
    graph: OpGraph, found: MemoryOrders, loops: Set[str], fused: Set[int], exempt: Set[int]
) -> Rewrites:
    """What is written more than once. Values that are `fused` are not in memory: their readers read
    what they are made of, and so do copies for products."""
    if not found.misfits:
        return NO_REWRITES
    misfits = {(each.op, each.operand) for each in found.misfits}
    sources = _sources(graph, fused, misfits)
    readings: dict[int, dict[Order, _Reading]] = defaultdict(dict)
    for reading in found.misfits:
        operand = graph.ops[reading.op].operands[reading.operand]
        size = graph.tensors[operand].elements
        if graph.ops[reading.op].name == "dot_general":
            behind: Iterable[int] = (_renamed(graph, operand, fused),)
        else:
            behind = sources.get(operand, (operand,))
        for source in behind:
            if graph.tensors[source].elements == size:
                readings[source].setdefault(reading.moves, reading)
    as_they_are = set(graph.outputs)
    for index, op in enumerate(graph.ops):
        if not all(result in fused for result in op.results):
            as_they_are.update(_read(op, index, sources, misfits))
    copies: dict[int, list[int]] = {}
    strewn: dict[int, list[int]] = {}
    more_writes: dict[int, int] = {}
    strewn_writes: dict[int, int] = {}
    producers = graph.producers()
    for source, by_moves in readings.items():
        number = producers[source]
        maker = graph.ops[number] if number >= 0 and number not in exempt else None
        # What is fused, the copy computes on its way.
        if maker is not None and maker.name in loops and source not in fused:
            more_writes[source] = len(by_moves) - (source not in as_they_are)
            itemsize = graph.tensors[source].itemsize
            strewn_writes[source] = sum(r.is_strewn(itemsize) for r in by_moves.values())
            continue
        written = None
        if source not in as_they_are and source not in fused:
            written = _written(maker, found.orders[source], by_moves)
        for moves, reading in by_moves.items():
            if moves != written:
                operands = graph.ops[reading.op].operands
                copies.setdefault(reading.op, [0] * len(operands))[reading.operand] += 1
                if reading.is_strewn(graph.tensors[operands[reading.operand]].itemsize):
                    strewn.setdefault(reading.op, [0] * len(operands))[reading.operand] += 1
    return Rewrites(
        {op: tuple(counts) for op, counts in copies.items()},
        {tensor: count for tensor, count in more_writes.items() if count},
        {op: tuple(counts) for op, counts in strewn.items()},
        {tensor: count for tensor, count in strewn_writes.items() if count},
    )


def _renamed(graph: OpGraph, tensor: int, fused: Set[int]) -> int:
    """The value of which a fused one is a view."""
    producers = graph.producers()
    while tensor in fused and graph.ops[producers[tensor]].name in _VIEWS:
        [tensor] = graph.ops[producers[tensor]].operands
    return tensor


def _written(op: Op | None, order: Order | None, wanted: Iterable[Order]) -> Order | None:
    """Of the orders that are wanted one in which a product can write its result: with rows and
    columns in each other's place."""
    if op is None or op.name != "dot_general" or op.rule is None or order is None:
        return None
    left, right = ({f for dim in dims for f in dim} for dims in op.rule.operands[:2])
    of = [set(factors) for factors in op.rule.results[0]]
    groups = (
        tuple(dim for dim in order if of[dim] <= left & right),
        tuple(dim for dim in order if of[dim] <= left - right),
        tuple(dim for dim in order if of[dim] <= right - left),
    )
    for moves in wanted:
        if len(moves) == len(order) and is_matrix(tuple(order[at] for at in moves), groups):
            return moves
    return None


def _sources(
    graph: OpGraph, fused: Set[int], misfits: Set[tuple[int, int]]
) -> dict[int, frozenset[int]]:
    """For each fused value what is read from memory, in the order in which it lies there, to make
    it."""
    sources: dict[int, frozenset[int]] = {}
    for index, op in enumerate(graph.ops):
        inside = [result for result in op.results if result in fused]
        if inside:
            whole = frozenset(_read(op, index, sources, misfits))
            sources.update(dict.fromkeys(inside, whole))
    return sources


def _read(
    op: Op,
    index: int,
    sources: Mapping[int, frozenset[int]],
    misfits: Set[tuple[int, int]],
) -> Iterable[int]:
    for number, operand in enumerate(op.operands):
        if (index, number) not in misfits:
            yield from sources.get(operand, (operand,))
