"""How many rows have a key below p, as programs write it that multiply groups of sorted rows: rows
are counted by key, and the counts are summed up.

    %c = scatter(zeros, %keys, ones) add            %c[e] = rows whose key is e
    %s = reduce_window(%c) add                      %s[e] = rows whose key is at most e

In whatever way the sums are written, they are linear in the counts. Each element of a value is a
row of a matrix of whole numbers here, one column for each key; one that sums the first p counts and
no others is the number of rows whose key is below p."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod

import numpy as np
from jaxlib.mlir import ir

from shardopt.extract.op_graph import read_reducer
from shardopt.ir.rewriting import defining, past_barriers, shape_of
from shardopt.ir.shapes import dimensions
from shardopt.ir.splats import read_splat
from shardopt.passes.importing.coordinates import bounds, coordinate_dim
from shardopt.passes.importing.indexing import read_indexing
from shardopt.passes.importing.known_integers import direction

# A table of experts is small; what is larger is no sum of counts that anybody wrote.
_MAX_ELEMENTS = 1 << 16

_SIGNLESS_INTEGERS = (8, 16, 32, 64)


class PrefixCounts:
    """What is known of values that are summed from counts, by value."""

    def __init__(self) -> None:
        self._found: dict[ir.Value, tuple[np.ndarray, ir.Value] | None] = {}

    def of(self, value: ir.Value) -> tuple[np.ndarray, ir.Value] | None:
        """Of each element of `value` the p such that it is the number of rows with a key below p,
        and the keys, an integer for each row, in the order in which rows stand; None if the value
        is no such number. Keys are at least 0."""
        found = self._linear(value)
        if found is None:
            return None
        matrix, keys = found
        first = matrix.sum(axis=-1)
        is_prefix = matrix == (np.arange(matrix.shape[-1]) < first[..., None])
        return (first, keys) if is_prefix.all() else None

    def _linear(self, value: ir.Value) -> tuple[np.ndarray, ir.Value] | None:
        """Its coefficients `[*shape, keys]`, and the keys that are counted."""
        value = past_barriers(value)
        if value not in self._found:
            self._found[value] = None  # until it is known
            self._found[value] = self._read(value)
        return self._found[value]

    def _read(self, value: ir.Value) -> tuple[np.ndarray, ir.Value] | None:
        op, shape = defining(value), shape_of(value)
        if op is None or prod(shape) > _MAX_ELEMENTS or not _is_integer(value):
            return None
        keys = _counted(op)
        if keys is not None:
            return np.eye(shape[0], dtype=np.int64), keys
        rule = _RULES.get(op.name)
        if rule is None:
            return None
        known = [self._linear(operand) for operand in op.operands]
        sources = {found[1] for found in known if found is not None}
        if len(sources) != 1:
            return None
        (keys,) = sources
        count = next(found[0].shape[-1] for found in known if found is not None)
        tables = []
        for operand, found in zip(op.operands, known, strict=True):
            if found is not None:
                tables.append(found[0])
            elif bounds(operand) == (0, 0):
                tables.append(np.zeros((*shape_of(operand), count), dtype=np.int64))
            else:
                return None
        table = rule(op, *tables)
        if table is None or table.size > _MAX_ELEMENTS * 64:
            return None
        return table, keys


def _is_integer(value: ir.Value) -> bool:
    element = ir.RankedTensorType(value.type).element_type
    return (
        isinstance(element, ir.IntegerType)
        and element.is_signless
        and element.width in _SIGNLESS_INTEGERS
    )


def _counted(op: ir.Operation) -> ir.Value | None:
    """The keys, one for each row, that an operation counts from 0 on."""
    if op.name == "stablehlo.scatter":
        return _counted_by_scatter(op)
    return _counted_by_sum(op) if op.name == "stablehlo.reduce" else None


def _counted_by_scatter(op: ir.Operation) -> ir.Value | None:
    if len(op.operands) != 3 or read_reducer(op) != "add":
        return None
    target, indices, updates = op.operands
    how, shape = read_indexing(op), shape_of(indices)
    plain = how.index_map == (0,) == how.collapsed and not how.operand_batch and not how.window_dims
    if not plain or len(shape_of(target)) != 1 or prod(shape) != shape[0]:
        return None
    if bounds(target) != (0, 0) or bounds(updates) != (1, 1) or not _is_integer(indices):
        return None
    return indices if _is_known(indices) else None


def _counted_by_sum(op: ir.Operation) -> ir.Value | None:
    """A sum over rows of whether their key is e."""
    if len(op.operands) != 2 or read_reducer(op) != "add":
        return None
    dims, is_key = dimensions(op, "dimensions"), defining(past_barriers(op.operands[0]))
    if len(shape_of(op.operands[0])) != 2 or len(dims) != 1:
        return None
    (row,) = dims
    if is_key is not None and is_key.name == "stablehlo.convert":
        is_key = defining(is_key.operands[0])
    if is_key is None or is_key.name != "stablehlo.compare" or direction(is_key) != "EQ":
        return None
    for keys, places in (tuple(is_key.operands), tuple(is_key.operands)[::-1]):
        laid = defining(keys, "stablehlo.broadcast_in_dim")
        if coordinate_dim(places) != 1 - row or laid is None:
            continue
        source, laid_along = laid.operands[0], dimensions(laid, "broadcast_dimensions")
        sizes = shape_of(source)
        wide = [d for d, size in zip(laid_along, sizes, strict=True) if size != 1]
        if wide == [row] and _is_integer(source) and _is_known(source):
            return source
    return None


def _is_known(keys: ir.Value) -> bool:
    """Whether no key is negative: such rows stand in front and are counted nowhere."""
    low = lower_bound(keys)
    return low is not None and low >= 0


# What hands elements on as they are; of a sort, every result has those of its operand.
_SAME_ELEMENTS = frozenset(
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "reshape", "transpose", "slice", "convert", "gather")
)


def lower_bound(value: ir.Value) -> int | None:
    """A number that no element of an integer tensor is below, as far as its operations show."""
    return _LowerBounds().of(value)


def is_never(predicate: ir.Value) -> bool:
    """Whether a comparison with a limit holds nowhere, as no element is below it."""
    return _LowerBounds().is_never(predicate)


class _LowerBounds:
    """Numbers that no element is below, by value: wraps of indices ask for them more than once."""

    def __init__(self) -> None:
        self._found: dict[ir.Value, int | None] = {}

    def of(self, value: ir.Value) -> int | None:
        value = past_barriers(value)
        if value not in self._found:
            known = bounds(value)
            self._found[value] = self._read(value) if known is None else known[0]
        return self._found[value]

    def _read(self, value: ir.Value) -> int | None:
        op = defining(value)
        element = ir.RankedTensorType(value.type).element_type
        if op is None or not isinstance(element, ir.IntegerType):
            return None
        if coordinate_dim(value) is not None:
            return 0
        if op.name in _SAME_ELEMENTS:
            narrows = op.name == "stablehlo.convert" and not widens(op)
            return None if narrows else self.of(op.operands[0])
        if op.name == "stablehlo.sort":
            return self.of(op.operands[ir.OpResult(value).result_number])
        if op.name == "chlo.top_k" or (op.name == "stablehlo.custom_call" and _is_top_k(op)):
            return 0 if value == op.results[1] else None
        if op.name == "stablehlo.reduce":
            return self._of_picked(op, ir.OpResult(value).result_number)
        if op.name == "stablehlo.add":
            return _lower_of_numbered(op)
        if op.name == "stablehlo.select":
            return self._of_select(op)
        if op.name == "stablehlo.clamp":
            return self.of(op.operands[0])
        if op.name not in ("stablehlo.maximum", "stablehlo.minimum"):
            return None
        lows = [self.of(operand) for operand in op.operands]
        known = [low for low in lows if low is not None]
        if op.name == "stablehlo.maximum":
            return max(known, default=None)
        return min(known) if len(known) == 2 else None

    def _of_select(self, op: ir.Operation) -> int | None:
        """`select(i < 0, i + n, i)` is i where i is never negative."""
        predicate, on_true, on_false = op.operands
        if self.is_never(predicate):
            return self.of(on_false)
        lows = self.of(on_true), self.of(on_false)
        known = [low for low in lows if low is not None]
        return min(known) if len(known) == 2 else None

    def _of_picked(self, reduce: ir.Operation, number: int) -> int | None:
        """Of a result of a reduction that picks one of its elements, as the place of the largest
        is."""
        block = reduce.regions[0].blocks[0]
        count = len(reduce.results)
        own = (block.arguments[number], block.arguments[count + number])
        pending, picked = [block.operations[len(block.operations) - 1].operands[number]], set(own)
        while pending:
            value = pending.pop()
            op = defining(value)
            if op is not None and op.name == "stablehlo.select":
                pending += [op.operands[1], op.operands[2]]
            elif op is not None and op.name in ("stablehlo.minimum", "stablehlo.maximum"):
                pending += list(op.operands)
            elif value not in picked:
                return None
        first, last = (self.of(reduce.operands[k * count + number]) for k in (0, 1))
        return None if first is None or last is None else min(first, last)

    def is_never(self, predicate: ir.Value) -> bool:
        compare = defining(past_barriers(predicate), "stablehlo.compare")
        if compare is None or direction(compare) != "LT":
            return False
        low, limits = self.of(compare.operands[0]), bounds(compare.operands[1])
        return low is not None and limits is not None and low >= limits[1]


def _lower_of_numbered(add: ir.Operation) -> int | None:
    """Of coordinates that are numbered from something on."""
    width = ir.IntegerType(ir.RankedTensorType(add.results[0].type).element_type).width
    for places, first in (tuple(add.operands), tuple(add.operands)[::-1]):
        dim, known = coordinate_dim(places), bounds(first)
        if dim is not None and known is not None and known[0] >= 0:
            fits = known[1] + shape_of(places)[dim] < 1 << (width - 1)
            return known[0] if fits else None
    return None


def widens(convert: ir.Operation) -> bool:
    """Whether a conversion of signed integers changes none."""
    before, after = (
        ir.RankedTensorType(value.type).element_type
        for value in (convert.operands[0], convert.results[0])
    )
    return (
        isinstance(before, ir.IntegerType)
        and isinstance(after, ir.IntegerType)
        and not before.is_unsigned
        and not after.is_unsigned
        and after.width >= before.width > 1
    )


def _is_top_k(call: ir.Operation) -> bool:
    return ir.StringAttr(call.attributes["call_target_name"]).value in ("TopK", "mhlo.topk")


def follows(value: ir.Value, keys: frozenset[ir.Value]) -> bool:
    """Whether a value has a number for each row that never falls where one of `keys` rises: rows
    that are sorted by the latter are sorted by it."""
    while value not in keys:
        value = past_barriers(value)
        op = defining(value)
        if op is None:
            return False
        if op.name in ("stablehlo.reshape", "stablehlo.broadcast_in_dim"):
            if prod(shape_of(value)) != prod(shape_of(op.operands[0])):
                return False
            value = op.operands[0]
        elif op.name == "stablehlo.convert" and widens(op):
            value = op.operands[0]
        elif op.name in ("stablehlo.maximum", "stablehlo.minimum"):
            limited = [operand for operand in op.operands if not _is_splat(operand)]
            if len(limited) != 1:
                return False
            value = limited[0]
        elif op.name == "stablehlo.clamp" and all(map(_is_splat, (op.operands[0], op.operands[2]))):
            value = op.operands[1]
        elif op.name == "stablehlo.select" and is_never(op.operands[0]):
            value = op.operands[2]
        else:
            return False
    return True


def _is_splat(value: ir.Value) -> bool:
    op = defining(past_barriers(value))
    while op is not None and op.name in ("stablehlo.broadcast_in_dim", "stablehlo.convert"):
        op = defining(past_barriers(op.operands[0]))
    return op is not None and op.name == "stablehlo.constant" and read_splat(op) is not None


def _of_slice(op: ir.Operation, table: np.ndarray) -> np.ndarray:
    names = ("start_indices", "limit_indices", "strides")
    windows = zip(*(dimensions(op, name) for name in names), strict=True)
    return table[tuple(slice(*window) for window in windows)]


def _of_reshape(op: ir.Operation, table: np.ndarray) -> np.ndarray:
    return table.reshape(*shape_of(op.results[0]), table.shape[-1])


def _of_transpose(op: ir.Operation, table: np.ndarray) -> np.ndarray:
    return table.transpose(*dimensions(op, "permutation"), table.ndim - 1)


def _of_broadcast(op: ir.Operation, table: np.ndarray) -> np.ndarray | None:
    dims, shape = dimensions(op, "broadcast_dimensions"), shape_of(op.results[0])
    if list(dims) != sorted(dims):
        return None
    sizes = [1] * len(shape)
    for i, d in enumerate(dims):
        sizes[d] = table.shape[i]
    return np.broadcast_to(table.reshape(*sizes, table.shape[-1]), (*shape, table.shape[-1]))


def _of_concatenate(op: ir.Operation, *tables: np.ndarray) -> np.ndarray:
    return np.concatenate(tables, axis=ir.IntegerAttr(op.attributes["dimension"]).value)


def _of_pad(op: ir.Operation, table: np.ndarray, _: np.ndarray) -> np.ndarray:
    """With zeros, as any other value is refused."""
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    by_dim = zip(*(dimensions(op, name) for name in names), strict=True)
    for dim, (low, high, inner) in enumerate(by_dim):
        sizes = [*table.shape]
        sizes[dim] = max(0, sizes[dim] + (sizes[dim] - 1) * inner)
        apart = np.zeros(sizes, dtype=table.dtype)
        along = (slice(None),) * dim
        apart[(*along, slice(None, None, inner + 1))] = table
        kept = apart[(*along, slice(max(-low, 0), sizes[dim] - max(-high, 0)))]
        added = [(0, 0)] * table.ndim
        added[dim] = (max(low, 0), max(high, 0))
        table = np.pad(kept, added)
    return table


def _of_sum(op: ir.Operation, table: np.ndarray, _: np.ndarray) -> np.ndarray | None:
    return table.sum(axis=dimensions(op, "dimensions")) if read_reducer(op) == "add" else None


def _of_window(op: ir.Operation, table: np.ndarray, _: np.ndarray) -> np.ndarray | None:
    if read_reducer(op) != "add" or any(
        name in op.attributes and set(dimensions(op, name)) != {1}
        for name in ("window_strides", "base_dilations", "window_dilations")
    ):
        return None
    window, rank = dimensions(op, "window_dimensions"), table.ndim - 1
    added = np.zeros((rank, 2), dtype=np.int64)
    if "padding" in op.attributes:
        added = np.array(ir.DenseElementsAttr(op.attributes["padding"])).reshape(rank, 2)
    if (added < 0).any() or prod(window) * table.size > 1 << 24:
        return None
    padded = np.pad(table, [*map(tuple, added), (0, 0)])
    shape = shape_of(op.results[0])
    total = np.zeros((*shape, table.shape[-1]), dtype=np.int64)
    for start in product(*map(range, window)):
        total += padded[tuple(slice(s, s + n) for s, n in zip(start, shape, strict=True))]
    return total


_RULES: dict[str, Callable[..., np.ndarray | None]] = {
    "stablehlo.add": lambda op, a, b: a + b,
    "stablehlo.broadcast_in_dim": _of_broadcast,
    "stablehlo.concatenate": _of_concatenate,
    "stablehlo.convert": lambda op, a: a if widens(op) else None,
    "stablehlo.pad": _of_pad,
    "stablehlo.reduce": _of_sum,
    "stablehlo.reduce_window": _of_window,
    "stablehlo.reshape": _of_reshape,
    "stablehlo.slice": _of_slice,
    "stablehlo.subtract": lambda op, a, b: a - b,
    "stablehlo.transpose": _of_transpose,
}
