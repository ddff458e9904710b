"""Which intervals of layers are made of the same operations, found without cutting any of them out
of the step.

    layers [2, 5) and [3, 6) of a transformer  ─▶  equal digests: one part stands for both

A digest covers all that cutting a part (`cut_part`) and recomputing in it (`recompute_forward`)
look at: operations with the shared ones that they need, which tensors are one, which layers behind
the interval they depend on, and who else reads what is made. Numbers of operations, tensors and
layers count by their order only. So equal digests mean equal parts, but equal parts may have
different digests: those are told to be equal once they are cut (`StagePart.key`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from hashlib import blake2b
from operator import attrgetter

import numpy as np

from shardopt.graph.op_graph import SHARED, FactorRule, Op, Tensor
from shardopt.solve.stages.costs.ordering import by_first_use, first_uses
from shardopt.solve.stages.step_graph import StepGraph

_ELSEWHERE = ("operands", "results", "rule", "group", "block", "waits")
_ATTRIBUTES = attrgetter(*(f.name for f in fields(Op) if f.name not in _ELSEWHERE))
_BEFORE, _BODY, _AFTER = range(3)
_NOBODY = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class IntervalContent:
    """`ops` are the operations of an interval and the shared ones that they need, int64 `[n]`.
    Intervals of one digest have as many, and operation `ops[k]` of one does what `ops[k]` of the
    other does."""

    digest: bytes
    ops: np.ndarray


@dataclass(frozen=True, eq=False)
class IntervalContents:
    """The intervals of one step. Digests of two steps cannot be compared."""

    step: StepGraph
    _known: dict[tuple[int, int, int], IntervalContent] = field(default_factory=dict)

    def of(self, start: int, end: int, turn: int) -> IntervalContent | None:
        """Of layers [start, end) where what depends on layers from `turn` on is backward. None in a
        step of which a later layer reads what an earlier one computes again, as what of that is
        sent depends on where each stage begins; and where no two intervals can be equal, as the
        first and the last layer are not."""
        if not self.step.is_cut_alike or self.step.num_layers < 3:
            return None
        if (start, end, turn) not in self._known:
            self._known[start, end, turn] = self._content(start, end, turn)
        return self._known[start, end, turn]

    def _content(self, start: int, end: int, turn: int) -> IntervalContent:
        ops = self._ops(start, end)
        lengths = self._offsets[ops + 1] - self._offsets[ops]
        ends = np.cumsum(lengths)
        into = np.repeat(self._offsets[ops] - (ends - lengths), lengths)
        touched = self._touched[into + np.arange(len(into))]
        tensors, numbers = _by_first(touched)
        reached = self._reached[ops]
        layers = _relative(
            np.concatenate([self._op_layer[ops], reached, self._latest[tensors]]), start, end
        )
        first, last = self._readers[:, tensors], self._body_readers[:, tensors]
        arrays = (
            self._kinds[ops],
            _by_first(np.concatenate([[0], self._blocks[ops]]))[1],
            _by_first(self._rows[ops])[1],
            reached >= turn,
            numbers,
            layers,
            self._facts[tensors],
            _relative(self._makers[tensors], start, end),
            (self._owners[tensors] != _NOBODY) & _is_outside(self._owners[tensors], start, end),
            _is_outside(self._residence[tensors], start, end),
            (first[0] < start) | (first[1] >= end),
            (last[0] < start) | (last[1] >= end),
            self._ties(tensors),
            self._loops(ops),
        )
        digest = blake2b(digest_size=32)
        for array in arrays:
            digest.update(f"{array.shape}".encode())
            digest.update(array.astype(np.int64).tobytes())
        return IntervalContent(digest.digest(), ops)

    def _ops(self, start: int, end: int) -> np.ndarray:
        """The operations of an interval and the shared ones that they need, in the order of
        `_places`."""
        inside = [op for layer in range(start, end) for op in self.step.ops_of_layer.get(layer, ())]
        needed = 0
        for layer in range(start, end):
            needed |= self._needed_of_layer.get(layer, 0)
        ops = np.array([*inside, *_bits(needed)], dtype=np.int64)
        return ops[np.argsort(self._places[ops])]

    def _ties(self, tensors: np.ndarray) -> np.ndarray:
        """The pairs of the step that end with equal shardings, both of which are here."""
        place = np.full(len(self.step.graph.tensors), -1, dtype=np.int64)
        place[tensors] = np.arange(len(tensors))
        pairs = place[np.array(self.step.tied, dtype=np.int64).reshape(-1, 2)]
        here = pairs[(pairs >= 0).all(axis=1)]
        return here[np.lexsort(here.T[::-1])]

    def _loops(self, ops: np.ndarray) -> np.ndarray:
        """Where the insides of loops begin and end among the operations."""
        spans = []
        for first, last in self.step.graph.loops:
            places = np.flatnonzero((first <= ops) & (ops < last))
            if places.size:
                spans.append((places[0], places[-1]))
        return np.array(spans, dtype=np.int64).reshape(-1, 2)

    @cached_property
    def _places(self) -> np.ndarray:
        """An order of all operations: the body as it stands there, what is around it by what it
        works for, so that the names of parameters do not matter: int64 `[operations]`.

        What reads state on the hosts is cut into pieces in the order of the program."""
        step, (begin, stop) = self.step, self.step.loop
        ops, body = range(len(step.graph.ops)), range(begin, stop)
        if step.on_host:
            return np.arange(len(ops))
        uses = first_uses(step, body)
        around = [by_first_use(step, some, uses) for some in (ops[:begin], ops[stop:])]
        places = np.empty(len(ops), dtype=np.int64)
        places[np.array([*around[0], *body, *around[1]], dtype=np.int64)] = np.arange(len(ops))
        return places

    @cached_property
    def _needed_of_layer(self) -> dict[int, int]:
        """The shared operations that each layer needs, a bit for each operation of the step."""
        step, behind, needed = self.step, dict[int, int](), dict[int, int]()
        for number, (op, layer) in enumerate(zip(step.graph.ops, step.op_layer, strict=True)):
            bits = 0
            for tensor in op.operands:
                bits |= behind.get(step.producers[tensor], 0)
            if layer == SHARED:
                behind[number] = bits | 1 << number
            else:
                needed[layer] = needed.get(layer, 0) | bits
        return needed

    @cached_property
    def _kinds(self) -> np.ndarray:
        """Equal numbers for operations that differ in what they work on only: int64 `[operations]`,
        as the next ones."""
        number, rules = dict[object, int](), dict[FactorRule | None, int]()
        of_rule = {
            id(rule): rules.setdefault(rule, len(rules))
            for rule in {id(op.rule): op.rule for op in self.step.graph.ops}.values()
        }
        kinds = []
        for region, op in zip(self._regions.tolist(), self.step.graph.ops, strict=True):
            counts = len(op.operands), len(op.results), len(op.waits)
            key = (region, of_rule[id(op.rule)], counts, _ATTRIBUTES(op))
            kinds.append(number.setdefault(key, len(number)))
        return np.array(kinds, dtype=np.int64)

    @cached_property
    def _regions(self) -> np.ndarray:
        """Before the loop, in its body, or behind it."""
        regions = np.full(len(self.step.graph.ops), _BODY)
        regions[: self.step.loop[0]], regions[self.step.loop[1] :] = _BEFORE, _AFTER
        return regions

    @cached_property
    def _op_layer(self) -> np.ndarray:
        return np.array(self.step.op_layer, dtype=np.int64)

    @cached_property
    def _blocks(self) -> np.ndarray:
        """Zero outside of loops and branches."""
        return np.array([op.block for op in self.step.graph.ops], dtype=np.int64)

    @cached_property
    def _rows(self) -> np.ndarray:
        """What runs as a whole."""
        rows = np.arange(len(self.step.graph.ops)) + len(self.step.units)
        for row, unit in enumerate(self.step.units):
            rows[unit.start : unit.stop] = row
        return rows

    @cached_property
    def _reached(self) -> np.ndarray:
        """The last layer that an operation of the body depends on."""
        reached = np.full(len(self.step.graph.ops), SHARED)
        for unit, layer in zip(self.step.units, self.step.body.reached, strict=True):
            reached[unit.start : unit.stop] = layer
        return reached

    @cached_property
    def _touched(self) -> np.ndarray:
        """The tensors of every operation, one operation behind the other: int64 `[n]`."""
        every = [t for op in self.step.graph.ops for t in (*op.operands, *op.results, *op.waits)]
        return np.array(every, dtype=np.int64)

    @cached_property
    def _offsets(self) -> np.ndarray:
        """Where those of an operation begin: int64 `[operations + 1]`."""
        ops = self.step.graph.ops
        lengths = [len(op.operands) + len(op.results) + len(op.waits) for op in ops]
        return np.concatenate([[0], np.cumsum(np.array(lengths, dtype=np.int64))])

    @cached_property
    def _facts(self) -> np.ndarray:
        """What is the same about a tensor in every interval: int64 `[tensors, facts]`."""
        step, graph = self.step, self.step.graph
        types = dict[Tensor, int]()
        returned, added = set(graph.outputs), {after for _, after in step.carried}
        rows = []
        for tensor, (kind, maker) in enumerate(zip(graph.tensors, step.producers, strict=True)):
            is_made = maker >= 0
            rows.append(
                (
                    types.setdefault(kind, len(types)),
                    int(self._regions[maker]) if is_made else -1,
                    is_made and step.op_layer[maker] == SHARED,
                    is_made and step.is_sum_point(maker),
                    tensor in returned,
                    tensor in added,
                    tensor in graph.carried,
                    tensor in step.literals,
                    tensor in step.on_host,
                    tensor in step.body.readers,
                )
            )
        return np.array(rows, dtype=np.int64).reshape(len(graph.tensors), -1)

    @cached_property
    def _makers(self) -> np.ndarray:
        """The layer of what makes each tensor: int64 `[tensors]`, as the next ones."""
        step = self.step
        layers = (step.op_layer[maker] if maker >= 0 else SHARED for maker in step.producers)
        return np.fromiter(layers, dtype=np.int64)

    @cached_property
    def _owners(self) -> np.ndarray:
        return self._by_tensor(self.step.owner.items(), _NOBODY)

    @cached_property
    def _residence(self) -> np.ndarray:
        return self._by_tensor(self.step.resident.items(), _NOBODY)

    @cached_property
    def _latest(self) -> np.ndarray:
        """The last layer that a value of the body depends on."""
        return self._by_tensor(self.step.body.latest.items(), SHARED)

    @cached_property
    def _readers(self) -> np.ndarray:
        """The first and the last layer that reads each tensor: int64 `[2, tensors]`."""
        return self._first_and_last(range(len(self.step.graph.ops)))

    @cached_property
    def _body_readers(self) -> np.ndarray:
        """The same of the body."""
        return self._first_and_last(range(*self.step.loop))

    def _first_and_last(self, ops: range) -> np.ndarray:
        step = self.step
        reads = [(t, step.op_layer[op]) for op in ops for t in step.graph.ops[op].operands]
        tensors, layers = np.array(reads, dtype=np.int64).reshape(-1, 2).T
        first = np.full(len(step.graph.tensors), _NOBODY)
        last = np.full(len(step.graph.tensors), SHARED - 1)
        np.minimum.at(first, tensors, layers)
        np.maximum.at(last, tensors, layers)
        return np.stack([first, last])

    def _by_tensor(self, layers: Iterable[tuple[int, int]], default: int) -> np.ndarray:
        array = np.full(len(self.step.graph.tensors), default)
        for tensor, layer in layers:
            array[tensor] = layer
        return array


def _bits(mask: int) -> list[int]:
    """The numbers of the bits that are set."""
    octets = np.frombuffer(mask.to_bytes(mask.bit_length() // 8 + 1, "little"), dtype=np.uint8)
    return np.flatnonzero(np.unpackbits(octets, bitorder="little")).tolist()


def _by_first(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values in the order in which they come, and the number of each value among
    them."""
    distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = np.arange(len(order))
    return distinct[order], numbers[inverse]


def _is_outside(layers: np.ndarray, start: int, end: int) -> np.ndarray:
    return (layers < start) | (layers >= end)


def _relative(layers: np.ndarray, start: int, end: int) -> np.ndarray:
    """Layers of an interval from its first on; those behind it by their order; SHARED and those
    before it as -1."""
    behind = np.unique(layers[layers >= end])
    ranks = end - start + np.searchsorted(behind, layers)
    return np.where(layers < start, -1, np.where(layers >= end, ranks, layers - start))
