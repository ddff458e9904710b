"""What scores are for keys behind their query: the proof that attention is causal, from the flow of
data.

    %i = iota over queries, %j = iota over keys
    %m = compare GE %i, %j                       for j > i: false
    %s = select %m, %scores, -1e9                           -1e9, whatever the scores are
    %e = exponential (%s - maximum of %s)                   0
    %o = dot_general %e, %values                 adds 0 times each later value

A value with queries and keys is followed back to constants: splats, literals, and comparisons of
positions. What is found is one number for all pairs with j > i, if there is one. Added to scores, a
number of -10,000 or less (`MASKED`) counts as minus infinity: scores of a row are taken to differ
by less, and each row to see some key up to its own, as they do where such masks are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np

from shardopt.graph.microbatching import Cut, Splat, Split
from shardopt.graph.op_graph import Op, OpGraph
from shardopt.solve.microbatches.batch_factors import locate, operand_split

MASKED = -1e4
_SAME = frozenset({"broadcast_in_dim", "convert", "reshape", "transpose", "sharding"})
# What keeps the numbers, or takes one of two.
_BOUNDED = (_SAME - {"convert"}) | {"maximum", "minimum"}
_REVERSED = {"GT": "LT", "GE": "LE", "LT": "GT", "LE": "GE", "EQ": "EQ", "NE": "NE"}
# Types in which positions are exact, and differences of them where they have a sign.
_SIGNED = frozenset({"i32", "i64", "f32", "f64"})
_UNSIGNED = frozenset({"ui32", "ui64"})
_LOGICAL = frozenset({"and", "not", "or"})


@dataclass(frozen=True)
class Literals:
    """What the graph does not say of its operations: constants of one element, others as arrays (on
    demand), the direction of comparisons, the dimension of iotas, and where slices without gaps
    start, by tensor or operation."""

    splats: Mapping[int, Splat]
    array: Callable[[int], np.ndarray | None]
    directions: Mapping[int, str]
    iotas: Mapping[int, int]
    starts: Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class Later:
    """What a value is for all keys behind their query: `number`, or with `plus` that number and
    some score."""

    number: float
    plus: bool = False

    @property
    def is_zero(self) -> bool:
        return self.number == 0 and not self.plus

    @property
    def is_masked(self) -> bool:
        """Whether its exponential is nothing beside that of a score."""
        return self.number <= MASKED


_Place = tuple[int, Split | None, Split | None]  # tensor, where its queries and its keys are
_Line = tuple[int, int, float]  # so many times the query, and the key, and a number


class Causality:
    """Of the values of one graph."""

    def __init__(self, graph: OpGraph, literals: Literals) -> None:
        self.graph, self.literals = graph, literals
        self._makers = graph.producers()
        self._known: dict[_Place, Later | None] = {}

    def later(self, tensor: int, queries: Split | None, keys: Split | None) -> Later | None:
        """What a value is where the key is behind the query, if that is one number."""
        place = (tensor, queries, keys)
        if place not in self._known:
            self._known[place] = self._find(*place)
        return self._known[place]

    def _find(self, tensor: int, queries: Split | None, keys: Split | None) -> Later | None:
        if tensor in self.literals.splats:
            number = self.literals.splats[tensor]
            return None if isinstance(number, complex) else Later(float(number))
        index = self._makers[tensor]
        if index < 0:
            return None
        op = self.graph.ops[index]
        if op.name == "constant":
            return self._in_literal(tensor, queries, keys)
        if op.name == "compare":
            return self._compared(index, op, queries, keys)
        if op.name == "slice":
            return self._of_slice(index, op, queries, keys)
        values = self._operands(op, tensor, queries, keys)
        dtype = self.graph.tensors[tensor].dtype
        if values is None or (op.name in _LOGICAL and dtype != "i1"):
            return None
        if op.name in _SAME:
            same = values[0]()
            exact = same is None or op.name != "convert" or "f" in dtype or same.number in (0, 1)
            return same if exact else None
        rule = _RULES.get(op.name)
        return None if rule is None else rule(values)

    def _operands(
        self, op: Op, tensor: int, queries: Split | None, keys: Split | None
    ) -> list[Callable[[], Later | None]] | None:
        """The operands, each looked at when it is asked for; None where queries or keys do not lie
        on a factor."""
        splits = self._splits(op, tensor, queries, keys)
        if splits is None:
            return None

        def ask(number: int) -> Callable[[], Later | None]:
            return lambda: self.later(op.operands[number], *splits[number])

        return [ask(number) for number in range(len(splits))]

    @staticmethod
    def _splits(
        op: Op, tensor: int, queries: Split | None, keys: Split | None
    ) -> list[tuple[Split | None, Split | None]] | None:
        if op.rule is None:
            return None
        mapping = op.rule.results[op.results.index(tensor)]
        cuts: list[Cut | None] = []
        for split in (queries, keys):
            cut = None if split is None else locate(mapping[split.dim], op.rule.sizes, split)
            if split is not None and (cut is None or cut.extent != split.extent):
                return None
            cuts.append(cut)
        count = min(len(op.operands), len(op.rule.operands))
        first, second = cuts
        return [
            (operand_split(op, number, first), operand_split(op, number, second))
            for number in range(count)
        ]

    def _in_literal(self, tensor: int, queries: Split | None, keys: Split | None) -> Later | None:
        if queries is None or keys is None or queries.dim == keys.dim:
            return None
        array = self.literals.array(tensor)
        shape = self.graph.tensors[tensor].shape
        if array is None or shape[queries.dim] != queries.extent or shape[keys.dim] != keys.extent:
            return None
        pairs = np.moveaxis(np.broadcast_to(array, shape), (queries.dim, keys.dim), (0, 1))
        behind = pairs[np.triu_indices(queries.extent, 1, keys.extent)]
        if not behind.size or not np.all(behind == behind.flat[0]):
            return None
        return Later(float(behind.flat[0]))

    def _of_slice(
        self, index: int, op: Op, queries: Split | None, keys: Split | None
    ) -> Later | None:
        """Masks are made for the longest sequence, and cut. Pairs of a part that starts at the same
        query and key are pairs of the whole."""
        found = self._uncut(index, op, queries, keys)
        if found is None:
            return None
        place, (of_query, of_key) = found
        aligned = queries is None or keys is None or of_query == of_key
        return self.later(*place) if aligned else None

    def _uncut(
        self, index: int, op: Op, queries: Split | None, keys: Split | None
    ) -> tuple[_Place, tuple[int, int]] | None:
        """The place in what a slice is taken of, and the query and key there that it starts at."""
        starts, [source], [result] = self.literals.starts.get(index), op.operands, op.results
        before, after = (self.graph.tensors[tensor].shape for tensor in (source, result))
        splits = [split for split in (queries, keys) if split is not None]
        if starts is None or any(after[split.dim] != split.extent for split in splits):
            return None
        of_query, of_key = (
            (None, 0)
            if split is None
            else (Split(split.dim, 1, before[split.dim]), starts[split.dim])
            for split in (queries, keys)
        )
        return (source, of_query[0], of_key[0]), (of_query[1], of_key[1])

    # ---- positions ----

    def _compared(
        self, index: int, op: Op, queries: Split | None, keys: Split | None
    ) -> Later | None:
        splits = self._splits(op, op.results[0], queries, keys)
        direction = self.literals.directions.get(index)
        if splits is None or direction is None:
            return None
        places = [(tensor, *split) for tensor, split in zip(op.operands, splits, strict=False)]
        first, second = (self._line(*place) for place in places)
        if first is None or second is None:
            return self._of_numbers(direction, places)
        of_query, of_key, rest = (a - b for a, b in zip(first, second, strict=True))
        if of_query != -of_key or abs(of_key) > 1:
            return None
        if of_key < 0:
            direction, rest = _REVERSED[direction], -rest
        # (key - query) + rest, where key - query is 1 or more; or rest alone.
        least, most = (1 + rest, float("inf")) if of_key else (rest, rest)
        return _decided(direction, least, most)

    def _of_numbers(self, direction: str, places: Sequence[_Place]) -> Later | None:
        """Of two numbers or bounds of them, or of one that is masked with the maximum of a row,
        which is none: a row has the key of its own query."""
        (a_least, a_most), (b_least, b_most) = (self._bounds(place) for place in places)
        found = _decided(direction, a_least - b_most, a_most - b_least)
        if found is not None:
            return found
        a, b = (self.later(*place) for place in places)
        first, second = (self._is_maximum(place[0]) for place in places)
        if a is not None and a.is_masked and second:
            return _decided(direction, -float("inf"), -1.0)
        if b is not None and b.is_masked and first:
            return _decided(direction, 1.0, float("inf"))
        return None

    def _bounds(self, place: _Place) -> tuple[float, float]:
        """The least and the most that a value may be: masks of the batch and those of positions
        come together as the minimum of both, whatever that of the batch is."""
        tensor, queries, keys = place
        known, index = self.later(*place), self._makers[tensor]
        if known is not None and not known.plus:
            return known.number, known.number
        op = self.graph.ops[index] if index >= 0 else None
        splits = None if op is None else self._splits(op, tensor, queries, keys)
        if op is None or splits is None or op.name not in _BOUNDED:
            return -float("inf"), float("inf")
        bounds = [self._bounds((t, *s)) for t, s in zip(op.operands, splits, strict=True)]
        choose = max if op.name == "maximum" else min
        return choose(least for least, _ in bounds), choose(most for _, most in bounds)

    def _is_maximum(self, tensor: int) -> bool:
        """Of something over a dimension, repeated along it or not."""
        while (index := self._makers[tensor]) >= 0:
            op = self.graph.ops[index]
            if op.name == "reduce":
                return op.reducer == "maximum"
            if op.name not in _SAME:
                return False
            tensor = op.operands[0]
        return False

    def _line(self, tensor: int, queries: Split | None, keys: Split | None) -> _Line | None:
        """A value that is linear in the positions of query and key."""
        dtype = self.graph.tensors[tensor].dtype
        if dtype not in _SIGNED | _UNSIGNED:
            return None
        if tensor in self.literals.splats:
            number = self.literals.splats[tensor]
            return None if isinstance(number, complex) else (0, 0, float(number))
        index = self._makers[tensor]
        if index < 0:
            return None
        op = self.graph.ops[index]
        if op.name in ("iota", "constant"):
            return self._counted(index, tensor, queries, keys)
        if op.name == "slice":
            found = self._uncut(index, op, queries, keys)
            line = None if found is None else self._line(*found[0])
            if found is None or line is None:
                return None
            (a, b, rest), (of_query, of_key) = line, found[1]
            return a, b, rest + a * of_query + b * of_key
        splits = self._splits(op, tensor, queries, keys)
        known = (*_SAME, "add", "subtract") if dtype in _SIGNED else (*_SAME, "add")
        if splits is None or op.name not in known:
            return None
        lines = [self._line(t, *s) for t, s in zip(op.operands, splits, strict=False)]
        if op.name in _SAME:
            return lines[0]
        first, second = lines
        if first is None or second is None:
            return None
        sign = 1 if op.name == "add" else -1
        return (
            first[0] + sign * second[0],
            first[1] + sign * second[1],
            first[2] + sign * second[2],
        )

    def _counted(
        self, index: int, tensor: int, queries: Split | None, keys: Split | None
    ) -> _Line | None:
        shape, start = self.graph.tensors[tensor].shape, 0.0
        dim = self.literals.iotas.get(index)
        if dim is None:  # positions as a literal
            array = self.literals.array(tensor) if len(shape) == 1 else None
            if array is None or not np.array_equal(array - array[0], np.arange(len(array))):
                return None
            dim, start = 0, float(array[0])
        for line, split in (((1, 0, start), queries), ((0, 1, start), keys)):
            if split is not None and split.dim == dim:
                return line if shape[dim] == split.extent else None
        return None


def _decided(direction: str, least: float, most: float) -> Later | None:
    """Whether a number between two others compares so with zero."""
    always = {
        "GT": least > 0,
        "GE": least >= 0,
        "LT": most < 0,
        "LE": most <= 0,
        "EQ": least == most == 0,
        "NE": least > 0 or most < 0,
    }
    never = {"GT": "LE", "GE": "LT", "LT": "GE", "LE": "GT", "EQ": "NE", "NE": "EQ"}
    if always[direction]:
        return Later(1.0)
    return Later(0.0) if always[never[direction]] else None


# ---- what operations make of such numbers; an operand is looked at when it is called ----

_Values = list[Callable[[], Later | None]]


def _add(values: _Values) -> Later | None:
    a, b = (value() for value in values)
    if a is not None and b is not None:
        return Later(a.number + b.number, a.plus or b.plus)
    known = a or b
    return Later(known.number, True) if known is not None and known.is_masked else None


def _subtract(values: _Values) -> Later | None:
    a, b = (value() for value in values)
    if a is not None and b is not None and not b.plus:
        return Later(a.number - b.number, a.plus)
    return Later(a.number, True) if a is not None and a.is_masked else None


def _multiply(values: _Values) -> Later | None:
    a, b = (value() for value in values)
    if any(each is not None and each.is_zero for each in (a, b)):
        return Later(0.0)
    if a is None or b is None or (a.plus and b.plus):
        return None
    return Later(a.number * b.number, a.plus or b.plus)


def _divide(values: _Values) -> Later | None:
    a = values[0]()
    if a is None or a.is_zero:
        return a
    b = values[1]()
    return None if b is None or b.plus or not b.number else Later(a.number / b.number, a.plus)


def _select(values: _Values) -> Later | None:
    chosen = values[0]()
    if chosen is not None:
        return values[1]() if chosen.number else values[2]()
    a, b = values[1](), values[2]()
    if a is not None and b is not None and a.is_masked and b.is_masked:
        return Later(max(a.number, b.number), a.plus or b.plus)
    return a if a == b else None


def _exponential(values: _Values) -> Later | None:
    a = values[0]()
    if a is None:
        return None
    if a.is_masked:
        return Later(0.0)
    return None if a.plus else Later(exp(a.number))


def _negate(values: _Values) -> Later | None:
    a = values[0]()
    return None if a is None or a.plus else Later(-a.number)


def _and(values: _Values) -> Later | None:
    a, b = (value() for value in values)
    if any(each is not None and each.is_zero for each in (a, b)):
        return Later(0.0)
    return None if a is None or b is None else Later(1.0)


def _or(values: _Values) -> Later | None:
    a, b = (value() for value in values)
    if any(each is not None and each.number for each in (a, b)):
        return Later(1.0)
    return None if a is None or b is None else Later(0.0)


def _not(values: _Values) -> Later | None:
    a = values[0]()
    return None if a is None else Later(float(not a.number))


_RULES: Mapping[str, Callable[[_Values], Later | None]] = {
    "add": _add,
    "and": _and,
    "divide": _divide,
    "exponential": _exponential,
    "multiply": _multiply,
    "negate": _negate,
    "not": _not,
    "or": _or,
    "select": _select,
    "subtract": _subtract,
}
