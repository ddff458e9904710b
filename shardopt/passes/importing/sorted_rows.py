"""Which values of a program have rows in the order of a sort, and whether the program would compute
the same were they never sorted.

    %keys:2 = sort(%key, %iota)             position j has row σ(j)
    %sent = gather(%x, %keys#1)             row j of `sent` is what row σ(j) of it would be unsorted
    %mask = compare LT, %position, %count   …if this is a statement about keys
    %back = gather(%sent, %inverse)         in the order of `x` again

A value is *sorted along d* if its element j along d is made of row σ(j) and of what all rows share:
then σ can be left out of all that makes it. What is computed row by row of such values is sorted as
well. A sum over d is the same in any order, and so is a scatter that adds. A gather at the inverse
permutation of σ, which a sort of σ makes, has rows in their order again. Positions themselves say
nothing about rows, but for one thing: position j lies below the number of rows with a key below p
if and only if the key of row σ(j) is below p.

Rows may be padded behind the last, as kernels for groups of rows want it, and the padding cut off
or summed away: then it is left out with σ, where it is known to be zero in sums."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.dialect.annotation import is_marker
from shardopt.extract.op_graph import read_reducer
from shardopt.ir.rewriting import defining, shape_of
from shardopt.ir.shapes import dimensions
from shardopt.passes.importing.coordinates import bounds, coordinate_dim
from shardopt.passes.importing.indexing import read_indexing
from shardopt.passes.importing.known_integers import direction
from shardopt.passes.importing.prefix_counts import is_never, lower_bound, widens
from shardopt.passes.importing.sorted_kinds import (
    ELEMENTWISE,
    Inverse,
    Kind,
    NotSorted,
    Placed,
    Shifted,
    Sorted,
    filled_by,
    splat_fill,
)
from shardopt.passes.importing.unsorted_values import UnsortedValues

# Reductions that are the same in any order of their operands.
_UNORDERED = frozenset({"add", "and", "maximum", "minimum", "multiply", "or"})
# Of these, what padding has to be where it is summed away: zeros, or (True) ones.
_NEUTRAL = {"add": False, "or": False, "and": True}


@dataclass(frozen=True)
class _Reader:
    op: ir.Operation

    def __lt__(self, other: _Reader) -> bool:
        return bool(self.op.is_before_in_block(other.op))


@dataclass
class SortedRows:
    """What follows from one sort of rank 1. `undo` may be called once `prove` has not raised."""

    sort: ir.Operation
    _kinds: dict[ir.Value, Kind] = field(default_factory=dict)
    # A heap, the first in the block in front, and what is or was in it.
    _pending: list[_Reader] = field(default_factory=list)
    _seen: set[ir.Operation] = field(default_factory=set)
    # In the order of the program, what is to be done once everything is proven.
    _edits: list[Callable[[], None]] = field(default_factory=list)
    _settled: set[ir.Value] = field(default_factory=set)
    _pads: list[ir.Operation] = field(default_factory=list)
    # What is equal to something in front of it, whatever the order.
    _same: dict[ir.Value, ir.Value] = field(default_factory=dict)
    _others: UnsortedValues = field(init=False)

    def __post_init__(self) -> None:
        self._others = UnsortedValues(self.sort, self._kinds, self._same)

    def prove(self) -> None:
        """Raises NotSorted where the order of rows shows in what the program computes."""
        if self._rows < 2:
            raise NotSorted
        for operand, result in zip(self.sort.operands, self.sort.results, strict=True):
            self._mark(result, Sorted(0, is_order=coordinate_dim(operand) == 0))
        while self._pending:
            op = heapq.heappop(self._pending).op
            rule = _RULES.get(op.name)
            if op.name in ELEMENTWISE:
                self._elementwise(op)
            elif rule is not None:
                rule(self, op)
            elif is_marker(op):
                self._marker(op)
            else:
                raise NotSorted

    def undo(self) -> None:
        """Let rows stay in the order that they had; the sort has no readers then."""
        for edit in self._edits:
            edit()
        for pad in self._pads:
            names = ("edge_padding_low", "edge_padding_high", "interior_padding")
            if not any(number for name in names for number in dimensions(pad, name)):
                pad.results[0].replace_all_uses_with(pad.operands[0])
        for operand, result in zip(self.sort.operands, self.sort.results, strict=True):
            result.replace_all_uses_with(operand)

    @property
    def _rows(self) -> int:
        return shape_of(self.sort.operands[0])[0]

    def _mark(self, value: ir.Value, kind: Kind) -> None:
        self._kinds[value] = kind
        for use in value.uses:
            owner = use.owner.operation
            if owner not in self._seen:
                if owner.block != self.sort.block:  # a region, of a loop or of a branch
                    raise NotSorted
                self._seen.add(owner)
                heapq.heappush(self._pending, _Reader(owner))

    def _result(self, op: ir.Operation, kind: Sorted, number: int = 0) -> None:
        """Result `number` is sorted; it has no padding any more once the edits are made."""
        result = op.results[number]
        if kind.padding:
            shape = [*shape_of(result)]
            shape[kind.dim] = self._rows
            type_ = ir.RankedTensorType.get(shape, ir.RankedTensorType(result.type).element_type)
            self._edits.append(lambda: result.set_type(type_))
        self._mark(result, kind)

    def _sorted(self, value: ir.Value) -> Sorted | None:
        kind = self._kinds.get(value)
        if kind is not None and not isinstance(kind, Sorted):
            raise NotSorted
        return kind

    def _by_rows(self, op: ir.Operation, number: int, dim: int, padding: int) -> bool | None:
        """Let an operand be had by rows along `dim`; returns what its padding holds."""
        value = op.operands[number]
        kind = self._sorted(value)
        if kind is not None:
            if (kind.dim, kind.padding) != (dim, padding):
                raise NotSorted
            return kind.filled
        found = self._others.by_rows(value, dim)

        def edit() -> None:
            with ir.InsertionPoint(op), op.location:
                op.operands[number] = found.build()

        self._edits.append(edit)
        return found.filled

    # ------------------------------------------------------------------------------------------
    # rules for operations that read sorted values

    def _elementwise(self, op: ir.Operation) -> None:
        if any(not isinstance(self._kinds.get(v), Sorted | None) for v in op.operands):
            self._of_inverse(op)
            return
        kind = self._first_sorted(op)
        fills = [
            self._by_rows(op, number, kind.dim, kind.padding)
            if shape_of(operand)
            else splat_fill(operand)
            for number, operand in enumerate(op.operands)
        ]
        made = kind.at(kind.dim, filled_by(op.name, fills))
        self._result(op, replace(made, is_order=self._is_still_order(op)))

    def _is_still_order(self, op: ir.Operation) -> bool:
        """Whether an operation hands σ on: converted, or past a wrap of negative indices."""
        if op.name == "stablehlo.convert" and widens(op):
            source = self._kinds.get(op.operands[0])
        elif op.name == "stablehlo.select" and is_never(op.operands[0]):
            source = self._kinds.get(op.operands[2])
        else:
            return False
        return isinstance(source, Sorted) and source.is_order

    def _first_sorted(self, op: ir.Operation) -> Sorted:
        return next(kind for v in op.operands if (kind := self._sorted(v)) is not None)

    def _of_inverse(self, op: ir.Operation) -> None:
        """Wraps and clamps of indices, which change none of them."""
        kinds = [self._kinds.get(operand) for operand in op.operands]
        inverse = next((kind for kind in kinds if isinstance(kind, Inverse)), None)
        others = [v for v, kind in zip(op.operands, kinds, strict=True) if kind is None]
        limits = [bounds(value) for value in others]
        result = op.results[0]
        last = self._rows - 1
        if op.name == "stablehlo.convert" and inverse is not None and widens(op):
            self._mark(result, inverse)
        elif op.name == "stablehlo.compare" and isinstance(kinds[0], Inverse):
            low, high = (limits and limits[0]) or (1, 0)  # nothing is known
            never = {"LT": high <= 0, "GT": low >= last}
            always = {"GE": high <= 0, "LE": low >= last}
            if low > high or not {**never, **always}.get(direction(op), False):
                raise NotSorted
            if direction(op) in never:
                self._settled.add(result)
        elif op.name == "stablehlo.compare" and isinstance(kinds[0], Placed):
            least, limit = lower_bound(kinds[0].source), limits[0] if limits else None
            if direction(op) != "EQ" or least is None or limit is None or limit[1] >= least:
                raise NotSorted
            self._settled.add(result)
        elif op.name == "stablehlo.add" and inverse is not None:
            self._mark(result, Shifted())
        elif op.name == "stablehlo.select" and op.operands[0] in self._settled:
            kept = kinds[2]
            if not isinstance(kept, Inverse):
                raise NotSorted
            self._mark(result, kept)
        elif op.name == "stablehlo.clamp" and isinstance(kinds[1], Inverse):
            lows, highs = bounds(op.operands[0]), bounds(op.operands[2])
            if lows is None or highs is None or lows[1] > 0 or highs[0] < last:
                raise NotSorted
            self._mark(result, kinds[1])
        else:
            raise NotSorted

    def _marker(self, op: ir.Operation) -> None:
        kind = self._sorted(op.operands[0])
        if kind is None or kind.padding:
            raise NotSorted
        self._result(op, kind)

    def _barrier(self, op: ir.Operation) -> None:
        for number, operand in enumerate(op.operands):
            kind = self._kinds.get(operand)
            if isinstance(kind, Sorted):
                self._result(op, kind, number)
            elif kind is not None:
                self._mark(op.results[number], kind)

    def _broadcast(self, op: ir.Operation) -> None:
        kind, dims = self._kinds[op.operands[0]], dimensions(op, "broadcast_dimensions")
        if isinstance(kind, Inverse):
            self._mark(op.results[0], Inverse(dims[kind.dim]))
            return
        if not isinstance(kind, Sorted):
            raise NotSorted
        self._result(op, kind.at(dims[kind.dim], kind.filled))

    def _reshape(self, op: ir.Operation) -> None:
        kind = self._kinds[op.operands[0]]
        if not isinstance(kind, (Sorted, Inverse)):
            raise NotSorted
        before, after = shape_of(op.operands[0]), shape_of(op.results[0])
        dim = _kept_dim(before, after, kind.dim)
        if isinstance(kind, Inverse):
            self._mark(op.results[0], Inverse(dim))
        else:
            is_order = kind.is_order and len(after) == 1
            self._result(op, replace(kind.at(dim, kind.filled), is_order=is_order))

    def _transpose(self, op: ir.Operation) -> None:
        kind = self._first_sorted(op)
        self._result(op, kind.at(dimensions(op, "permutation").index(kind.dim), kind.filled))

    def _slice(self, op: ir.Operation) -> None:
        kind = self._first_sorted(op)
        d = kind.dim
        start, limit, stride = (
            dimensions(op, name)[d] for name in ("start_indices", "limit_indices", "strides")
        )
        if start or stride != 1:
            raise NotSorted
        if limit == self._rows + kind.padding:
            self._set(op, "limit_indices", d, self._rows)
            self._result(op, kind.at(d, kind.filled))
        elif limit == self._rows:
            self._mark(op.results[0], Sorted(d))
        else:
            raise NotSorted

    def _pad(self, op: ir.Operation) -> None:
        kind = self._kinds.get(op.operands[0])
        if not isinstance(kind, Sorted) or op.operands[1] in self._kinds:
            raise NotSorted
        low, high, inner = (
            dimensions(op, name)[kind.dim]
            for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
        )
        padding = kind.padding + high
        if low or inner or padding < 0 or (high < 0 and padding):
            raise NotSorted
        fill = splat_fill(op.operands[1])
        filled = fill if not kind.padding or fill == kind.filled else None
        self._set(op, "edge_padding_high", kind.dim, 0)
        self._pads.append(op)
        if padding:
            self._result(op, Sorted(kind.dim, padding, filled))
        else:
            self._mark(op.results[0], Sorted(kind.dim))

    def _set(self, op: ir.Operation, name: str, dim: int, number: int) -> None:
        """Let an attribute of an operation say another number of a dimension."""
        numbers = [*dimensions(op, name)]
        if numbers[dim] != number:
            numbers[dim] = number

            def edit() -> None:
                op.attributes[name] = ir.DenseI64ArrayAttr.get(numbers, op.context)

            self._edits.append(edit)

    def _concatenate(self, op: ir.Operation) -> None:
        kind = self._first_sorted(op)
        if ir.IntegerAttr(op.attributes["dimension"]).value == kind.dim:
            raise NotSorted
        fills = {
            self._by_rows(op, number, kind.dim, kind.padding) for number in range(len(op.operands))
        }
        self._result(op, kind.at(kind.dim, fills.pop() if len(fills) == 1 else None))

    def _reduce(self, op: ir.Operation) -> None:
        kind, dims = self._first_sorted(op), dimensions(op, "dimensions")
        count = len(op.results)
        if any(value in self._kinds for value in list(op.operands)[count:]):
            raise NotSorted
        fills = [self._by_rows(op, n, kind.dim, kind.padding) for n in range(count)]
        reducer = read_reducer(op)
        if kind.dim not in dims:
            kept = fills[0] if reducer == "add" and fills[0] is False else None
            dim = kind.dim - sum(d < kind.dim for d in dims)
            for number in range(count):
                self._result(op, kind.at(dim, kept), number)
        else:
            is_neutral = fills[0] is not None and fills[0] is _NEUTRAL.get(reducer or "")
            if reducer not in _UNORDERED or count != 1 or (kind.padding and not is_neutral):
                raise NotSorted

    def _product(self, op: ir.Operation) -> None:
        dims = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        batching = [tuple(dims.lhs_batching_dimensions), tuple(dims.rhs_batching_dimensions)]
        contracting = [
            tuple(dims.lhs_contracting_dimensions),
            tuple(dims.rhs_contracting_dimensions),
        ]
        side = next(n for n in (0, 1) if self._sorted(op.operands[n]) is not None)
        kind = self._sorted(op.operands[side])
        assert kind is not None
        other = self._sorted(op.operands[1 - side])
        if kind.dim in contracting[side]:
            paired = contracting[1 - side][contracting[side].index(kind.dim)]
            fill = self._by_rows(op, 1 - side, paired, kind.padding)
            if kind.padding and False not in (kind.filled, fill):
                raise NotSorted
        elif kind.dim in batching[side]:
            place = batching[side].index(kind.dim)
            fill = self._by_rows(op, 1 - side, batching[1 - side][place], kind.padding)
            zero = False if False in (kind.filled, fill) else None
            self._result(op, kind.at(place, zero))
        elif other is not None:
            raise NotSorted
        else:
            taken = {*batching[side], *contracting[side]}
            free = [d for d in range(len(shape_of(op.operands[side]))) if d not in taken]
            first = len(batching[0])
            if side == 1:
                shape = shape_of(op.operands[0])
                first = len(shape) - len(contracting[0])
            zero = False if kind.filled is False else None
            self._result(op, kind.at(first + free.index(kind.dim), zero))

    def _gather(self, op: ir.Operation) -> None:
        operand, indices = (self._kinds.get(value) for value in op.operands)
        how = read_indexing(op)
        rank = len(shape_of(op.results[0]))
        rows_of_result = [d for d in range(rank) if d not in how.window_dims]
        index_dims = [d for d in range(len(shape_of(op.operands[1]))) if d != how.vector_dim]
        if isinstance(indices, Inverse):
            # Positions of rows, picked row by row: the rows in their order.
            if not isinstance(operand, Sorted) or how.operand_batch:
                raise NotSorted
            if how.index_map != (operand.dim,) or operand.dim not in how.collapsed:
                raise NotSorted
        elif isinstance(indices, Sorted) and operand is None:
            if indices.dim == how.vector_dim or indices.dim in how.index_batch:
                raise NotSorted
            self._result(op, indices.at(rows_of_result[index_dims.index(indices.dim)]))
        elif isinstance(indices, Sorted) and isinstance(operand, Sorted):
            pairs = zip(how.operand_batch, how.index_batch, strict=True)
            if (operand.dim, indices.dim) not in pairs or operand.padding != indices.padding:
                raise NotSorted
            self._result(op, indices.at(rows_of_result[index_dims.index(indices.dim)]))
        elif isinstance(operand, Placed):
            self._taken_back(op, operand.source)
        elif isinstance(operand, Sorted) and indices is None:
            sizes = dimensions(op, "slice_sizes")
            fixed = {*how.collapsed, *how.operand_batch, *how.index_map}
            if operand.dim in fixed or sizes[operand.dim] != self._rows or operand.padding:
                raise NotSorted
            windows = [d for d in range(len(sizes)) if d not in how.collapsed + how.operand_batch]
            self._result(op, Sorted(how.window_dims[windows.index(operand.dim)]))
        else:
            raise NotSorted

    def _taken_back(self, op: ir.Operation, source: ir.Value) -> None:
        """What was written at σ is read at σ: the gradient of a write asks with numbers of rows
        which of them are still there."""
        how, result = read_indexing(op), op.results[0]
        whole = (1, *shape_of(source)[1:]) == dimensions(op, "slice_sizes")
        if not whole or how.index_map != (0,) or how.collapsed != (0,) or how.operand_batch:
            raise NotSorted
        if not self._is_order(op.operands[1]) or result.type != source.type:
            raise NotSorted
        if how.window_dims != tuple(range(1, len(shape_of(source)))):
            raise NotSorted
        self._same[result] = source

    def _scatter(self, op: ir.Operation) -> None:
        if len(op.operands) != 3:
            raise NotSorted
        target, indices, updates = (self._kinds.get(value) for value in op.operands)
        how, reducer = read_indexing(op), read_reducer(op)
        rank = len(shape_of(op.operands[2]))
        update_rows = [d for d in range(rank) if d not in how.window_dims]
        index_dims = [d for d in range(len(shape_of(op.operands[1]))) if d != how.vector_dim]
        if isinstance(indices, Inverse):
            # Rows are sent to their positions, each to one of its own.
            alone = how.index_map == how.collapsed and len(how.index_map) == 1
            if target is not None or updates is not None or how.operand_batch or not alone:
                raise NotSorted
            dim = how.index_map[0]
            if shape_of(op.operands[0])[dim] != self._rows:
                raise NotSorted
            self._by_rows(op, 0, dim, 0)
            self._result(op, Sorted(dim))
            return
        if not isinstance(indices, Sorted) or indices.padding or indices.dim == how.vector_dim:
            raise NotSorted
        place = update_rows[index_dims.index(indices.dim)]
        if reducer is None:
            self._put(op, place)
            return
        if reducer not in _UNORDERED:
            raise NotSorted
        self._by_rows(op, 2, place, 0)
        if indices.dim in how.index_batch:
            dim = how.operand_batch[how.index_batch.index(indices.dim)]
            self._by_rows(op, 0, dim, 0)
            self._result(op, Sorted(dim))
        elif target is not None:
            raise NotSorted

    def _put(self, op: ir.Operation, place: int) -> None:
        """Rows are written in their places, each in its own; written positions are the inverse."""
        how, target, updates = read_indexing(op), op.operands[0], op.operands[2]
        block = op.regions[0].blocks[0]
        body = [view.operation for view in block.operations]
        writes = len(body) == 1 and body[0].operands[0] == block.arguments[1]
        if not writes or target in self._kinds or how.operand_batch or how.index_map != (0,):
            raise NotSorted
        if not self._is_order(op.operands[1]) or how.collapsed != (0,):
            raise NotSorted
        if shape_of(target)[0] != self._rows:
            raise NotSorted
        if updates in self._kinds:
            self._by_rows(op, 2, place, 0)
        elif shape_of(target) == shape_of(updates) and coordinate_dim(updates) == 0:
            result = op.results[0]
            self._mark(result, Inverse(0))
            self._edits.append(lambda: result.replace_all_uses_with(updates))
        elif shape_of(target) == shape_of(updates) and place == 0:
            self._mark(op.results[0], Placed(updates))
        else:
            raise NotSorted

    def _is_order(self, indices: ir.Value) -> bool:
        """Whether an index tensor is σ, with a dimension for the index or without."""
        while (made := defining(indices)) is not None and made.name in (
            "stablehlo.reshape",
            "stablehlo.broadcast_in_dim",
        ):
            if shape_of(indices)[0] != self._rows or shape_of(made.operands[0]) != (self._rows,):
                return False
            indices = made.operands[0]
        kind = self._kinds.get(indices)
        return isinstance(kind, Sorted) and kind.is_order

    def _sort_of_order(self, op: ir.Operation) -> None:
        """A sort of σ by itself, or of its inverse: what comes along is the inverse of that, and
        the keys are all positions."""
        keys, payload = self._kinds.get(op.operands[0]), op.operands[-1]
        if len(op.operands) != 2 or not is_ascending(op) or payload in self._kinds:
            raise NotSorted
        if coordinate_dim(payload) != 0 or payload.type != op.operands[0].type:
            raise NotSorted
        if isinstance(keys, Inverse):
            self._mark(op.results[1], Sorted(0, is_order=True))
        elif isinstance(keys, Sorted) and keys.is_order and not keys.padding:
            self._mark(op.results[1], Inverse(0))
        else:
            raise NotSorted

        def edit() -> None:
            for result in op.results:
                result.replace_all_uses_with(payload)

        self._edits.append(edit)


def is_ascending(op: ir.Operation) -> bool:
    """Whether a sort of rank 1 has integer keys, the least first."""
    block = op.regions[0].blocks[0]
    body = [view.operation for view in block.operations]
    element = ir.RankedTensorType(op.operands[0].type).element_type
    if len(shape_of(op.operands[0])) != 1 or not isinstance(element, ir.IntegerType):
        return False
    return (
        len(body) == 2
        and not element.is_unsigned
        and body[0].name == "stablehlo.compare"
        and direction(body[0]) == "LT"
        and list(body[0].operands) == [block.arguments[0], block.arguments[1]]
        and body[1].operands[0] == body[0].results[0]
    )


def _kept_dim(before: tuple[int, ...], after: tuple[int, ...], dim: int) -> int:
    """Where a reshape leaves a dimension as it is. Raises NotSorted where it does not."""
    size, in_front = before[dim], int(np.prod(before[:dim], dtype=np.int64))
    for place, extent in enumerate(after):
        if extent == size and int(np.prod(after[:place], dtype=np.int64)) == in_front:
            return place
    raise NotSorted


_RULES: dict[str, Callable[[SortedRows, ir.Operation], None]] = {
    "stablehlo.broadcast_in_dim": SortedRows._broadcast,
    "stablehlo.concatenate": SortedRows._concatenate,
    "stablehlo.dot_general": SortedRows._product,
    "stablehlo.gather": SortedRows._gather,
    "stablehlo.optimization_barrier": SortedRows._barrier,
    "stablehlo.pad": SortedRows._pad,
    "stablehlo.reduce": SortedRows._reduce,
    "stablehlo.reshape": SortedRows._reshape,
    "stablehlo.scatter": SortedRows._scatter,
    "stablehlo.slice": SortedRows._slice,
    "stablehlo.sort": SortedRows._sort_of_order,
    "stablehlo.transpose": SortedRows._transpose,
}
