"""Where the rows of a step's inputs go: what tells the batch from weights, tables and sequences.

*Rows* are the positions along one dimension of one input. `follow_rows` follows all of them at
once, in program order, through the factors of the sharding rules. An operation carries rows on,
sums over them, or mixes them:

    %h = dot %x, %w               rows of %x:0 and %w:1 carried, %x:1 meets %w:0 and both are summed
    %m = reduce add %h over 0     %x:0 is summed
    %d = subtract %h, %m          %x:0 is mixed: each row needs what all rows have gone into
    %e = gather %table[%ids]      %table:0 is looked up by an index from elsewhere

Loops are read as often as rows come back in what they carry, so that the rows of a recurrent state
are those of its inputs. Rows that meet on one factor run side by side. Sets of rows are integers,
bit k for rows k: a module has thousands of rows and tens of thousands of operations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, lcm, prod
from types import MappingProxyType

from shardopt.graph.microbatching import Cut, Split
from shardopt.graph.op_graph import FactorRule, Op, OpGraph
from shardopt.solve.microbatches.batch_factors import locate, moves_along, split_of
from shardopt.solve.microbatches.time_axis import HEAVY

_SLICES = frozenset({"slice", "dynamic_slice"})
_IN_PARTS = _SLICES | {"concatenate", "pad"}

# Of a loop: (tensor that enters it, tensor that takes its place in the next iteration).
FedBack = Sequence[tuple[int, int]]


@dataclass(frozen=True, order=True)
class Rows:
    """The positions along dimension `dim` of input number `number`. Of several equal `parts` of the
    dimension those with one place in each are a row."""

    number: int
    dim: int
    parts: int = 1


@dataclass(frozen=True)
class RowFlow:
    """What becomes of `rows`. Sets of rows are bits of an integer, bit k for `rows[k]`.

    * `kept[t]`: which rows tensor t has, and along which part of which dimension.
    * `summed[t]`: rows that t depends on and does not have any more.
    * `mixed`: rows that some operation mixes before, or while, the model's products read them.
    * `looked_up`: rows of tables, picked by an index that comes from elsewhere.
    * `parts`: rows (by number k) that the step cuts into so many parts itself, and takes one part
      at a time; `parted`: those of which it does so before its products.
    * `met`: sets of rows that run side by side on one factor.
    * `flops`: the work of products and convolutions (of all operations where there are none) by the
      set of rows that they run or sum over."""

    rows: tuple[Rows, ...]
    kept: tuple[dict[Split, int], ...]
    summed: tuple[int, ...]
    mixed: int
    looked_up: int
    parted: int
    parts: dict[int, int]
    met: frozenset[int]
    flops: dict[int, float]


def follow_rows(
    graph: OpGraph,
    inputs: Sequence[int],
    fed_back: Sequence[FedBack] = (),
    parts: Mapping[tuple[int, int], int] = MappingProxyType({}),
) -> RowFlow:
    """Of the tensors `inputs`, by their position there. A dimension of one element has no rows.
    `fed_back` has an entry for each loop of the graph. `parts` says of dimensions (number of the
    input, dimension) of how many parts rows are made up."""
    rows = tuple(
        Rows(number, dim, parts.get((number, dim), 1))
        for number, tensor in enumerate(inputs)
        for dim, extent in enumerate(graph.tensors[tensor].shape)
        if extent > 1
    )
    walk = _Walk(graph, inputs, rows)
    walk.run(range(len(graph.ops)), dict(enumerate(fed_back)))
    flops: dict[int, float] = defaultdict(float)
    for live, each in walk.work.values():
        flops[live] += each
    return RowFlow(
        rows=rows,
        kept=tuple(walk.kept),
        summed=tuple(walk.summed),
        mixed=walk.mixed,
        looked_up=walk.looked_up,
        parted=walk.parted,
        parts=walk.parts,
        met=frozenset(walk.met),
        flops=dict(flops),
    )


@dataclass
class _Carried:
    """The rows of an operation's operands: on which part of which factor, and those on none."""

    on: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    extents: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    lost: int = 0

    @property
    def all(self) -> int:
        return _union(self.on.values()) | self.lost

    @property
    def paired(self) -> int:
        """Rows on two factors: each meets all the others."""
        seen = twice = 0
        for rows in self.on.values():
            twice |= seen & rows
            seen |= rows
        return twice

    def cuts(self) -> Iterator[tuple[Cut, int]]:
        for (factor, outer), rows in self.on.items():
            yield Cut(factor, outer, self.extents[factor, outer]), rows


class _Walk:
    """`kept`, `summed` and the rest as in `RowFlow`. `mixed_in[t]` are the rows mixed on the way to
    tensor t. `behind_products[t]` says whether t depends on a product, `from_input[t]` whether on
    an input of the step."""

    def __init__(self, graph: OpGraph, inputs: Sequence[int], rows: Sequence[Rows]) -> None:
        count = len(graph.tensors)
        self.graph = graph
        self.kept: list[dict[Split, int]] = [{} for _ in range(count)]
        self.summed = [0] * count
        self.mixed_in = [0] * count
        self.behind_products = [False] * count
        self.from_input = [producer < 0 for producer in graph.producers()]
        self.mixed = self.looked_up = self.parted = 0
        self.parts: dict[int, int] = {}
        self.extents = [graph.tensors[inputs[each.number]].shape[each.dim] for each in rows]
        self.met: set[int] = set()
        self.work: dict[int, tuple[int, float]] = {}
        self.begun: dict[int, list[int]] = defaultdict(list)
        for number, (start, stop) in enumerate(graph.loops):
            if start < stop:
                self.begun[start].append(number)
        self.has_products = has_products(graph)
        for k, (each, extent) in enumerate(zip(rows, self.extents, strict=True)):
            split = Split(each.dim, each.parts, extent // each.parts)
            self.kept[inputs[each.number]][split] = 1 << k

    def run(self, span: range, loops: Mapping[int, FedBack]) -> None:
        """Visit the ops of `span`, and the loops inside of it as often as needed."""
        position = span.start
        while position < span.stop:
            # Loops are numbered behind those inside of them.
            outer = max((k for k in self.begun[position] if k in loops), default=None)
            if outer is None:
                self.visit(position)
                position += 1
                continue
            stop = self.graph.loops[outer][1]
            inside = {k: loop for k, loop in loops.items() if k < outer}
            self._run_loop(range(position, stop), loops[outer], inside)
            position = stop

    def _run_loop(self, span: range, fed_back: FedBack, inside: Mapping[int, FedBack]) -> None:
        # What enters may have other readers, which see nothing of the loop.
        entering = {before: self._facts(before) for before, _ in fed_back}
        is_new = True
        while is_new:
            self.run(span, inside)
            joined = [self._join(before, after) for before, after in fed_back]
            is_new = any(joined)
        for tensor, facts in entering.items():
            self.kept[tensor], self.summed[tensor], self.mixed_in[tensor] = facts

    def _facts(self, tensor: int) -> tuple[dict[Split, int], int, int]:
        return self.kept[tensor], self.summed[tensor], self.mixed_in[tensor]

    def _join(self, before: int, after: int) -> bool:
        """Whether `after` has rows that `before` had not."""
        old = self._facts(before)
        kept = dict(old[0])
        for split, rows in self.kept[after].items():
            kept[split] = kept.get(split, 0) | rows
        new = kept, old[1] | self.summed[after], old[2] | self.mixed_in[after]
        self.kept[before], self.summed[before], self.mixed_in[before] = new
        return new != old

    def visit(self, index: int) -> None:
        op = self.graph.ops[index]
        operands = op.operands
        heavy = op.name in HEAVY or op.rule is None
        behind_products = heavy or any(self.behind_products[t] for t in operands)
        summed = _union(self.summed[t] for t in operands)
        mixed = _union(self.mixed_in[t] for t in operands)
        if summed or mixed or any(self.kept[t] for t in operands):
            carried = self._carried(op)
            gone = carried.lost | self._picked(op, carried)
            if op.name in _IN_PARTS:
                parts = self._parts(op)
                self.parts.update(parts)
                # Behind products a slice belongs to the model (q, k and v of one product, say).
                dims = [split.dim for split in self.kept[operands[0]] if op.name in _SLICES]
                if not behind_products and any(self._takes_one(op, dim) for dim in dims):
                    self.parted |= _union(1 << k for k in parts)
            # Four ways to need other rows: no factor carries a row on, a row stands on two factors
            # (each meets all others), data moves along it, or it meets what all rows went into.
            mixed |= gone | carried.paired | _moved(op, carried) | self._coupled(op, carried)
            self._count(index, carried, gone)
            for position, result in enumerate(op.results):
                kept = _on_result(op.rule, carried, position, gone)
                if gone and not behind_products and (op.name != "gather" or self._shuffles(op)):
                    self._keep_shuffled(op, result, gone, kept)
                self.kept[result] = kept
                self.summed[result] = (summed | carried.all) & ~_union(kept.values())
                self.mixed_in[result] = mixed
            # What no product reads, such as a metric, may mix rows: it can run behind the loop.
            if heavy:
                self.mixed |= mixed
        from_input = any(self.from_input[t] for t in operands)
        for result in op.results:
            self.behind_products[result] = behind_products
            self.from_input[result] = from_input

    def _carried(self, op: Op) -> _Carried:
        carried = _Carried()
        mappings = op.rule.operands if op.rule is not None else ()
        for position, tensor in enumerate(op.operands):
            for split, rows in self.kept[tensor].items():
                cut = None
                if op.rule is not None and position < len(mappings):
                    cut = locate(mappings[position][split.dim], op.rule.sizes, split)
                if cut is None:
                    carried.lost |= rows
                    continue
                key = (cut.factor, cut.outer)
                carried.on[key] |= rows
                carried.extents[key] = gcd(carried.extents[key], cut.extent)
        return carried

    def _picked(self, op: Op, carried: _Carried) -> int:
        """Rows of a table; `looked_up` where an input chooses among them, and not they
        themselves."""
        if op.name != "gather" or op.rule is None:
            return 0
        table, chooser = op.operands[:2]
        results = op.rule.results
        handed_on = _union(
            rows
            for cut, rows in carried.cuts()
            if any(split_of(mapping, op.rule.sizes, cut) for mapping in results)
        )
        picked = _union(self.kept[table].values()) & ~handed_on
        if self.from_input[chooser] and not self._shuffles(op):
            choosing = _union((*self.kept[chooser].values(), self.summed[chooser]))
            self.looked_up |= picked & ~choosing
        return picked

    def _shuffles(self, op: Op) -> bool:
        """Whether a lookup takes each row once, in an order that no input gives row by row."""
        table, chooser = (self.graph.tensors[t] for t in op.operands[:2])
        return (prod(chooser.shape),) == table.shape[:1] and not self.kept[op.operands[1]]

    def _parts(self, op: Op) -> dict[int, int]:
        """Rows of which `op` takes, or places, one of several equal parts, and how many parts."""
        parts = {}
        for position, tensor in enumerate(op.operands):
            for split, rows in self.kept[tensor].items():
                count = self._count_parts(op, position, split)
                for k, extent in enumerate(self.extents if split.outer == 1 < count else ()):
                    if rows >> k & 1 and extent > count:
                        parts[k] = lcm(self.parts.get(k, 1), count)
        return parts

    def _count_parts(self, op: Op, position: int, split: Split) -> int:
        """They stand along a dimension of their own, as a scan over them wants it, or are segments
        of one (`shardopt.extract.segments`)."""
        if op.name in _SLICES and position == 0 and self._takes_one(op, split.dim):
            return self.graph.tensors[op.operands[0]].shape[split.dim]
        if op.rule is None or position >= len(op.rule.operands):
            return 1
        factors = op.rule.operands[position][split.dim]
        is_segment = len(factors) == 2 and factors[0] in op.rule.need_replication
        return op.rule.sizes[factors[0]] if is_segment else 1

    def _takes_one(self, op: Op, dim: int) -> bool:
        before, after = (self.graph.tensors[t].shape for t in (op.operands[0], op.results[0]))
        return after[dim] == 1 < before[dim]

    def _coupled(self, op: Op, carried: _Carried) -> int:
        """Rows that meet what all of them have gone into, behind arithmetic of the model: sums of
        inputs alone are cheap to have before."""
        return carried.all & _union(self.summed[t] for t in op.operands if self.behind_products[t])

    def _count(self, index: int, carried: _Carried, gone: int) -> None:
        op = self.graph.ops[index]
        self.met.update(rows for rows in carried.on.values() if rows & (rows - 1))
        live = carried.all & ~gone
        if live and (op.name in HEAVY or not self.has_products):
            self.work[index] = live, op.flops * op.repeat

    def _keep_shuffled(self, op: Op, result: int, gone: int, kept: dict[Split, int]) -> None:
        """Where an operation on inputs mixes rows and makes as many, they are rows again."""
        for tensor in op.operands:
            before, after = (self.graph.tensors[t].shape for t in (tensor, result))
            for split, rows in self.kept[tensor].items():
                if rows & gone and before[split.dim : split.dim + 1] == after[split.dim :][:1]:
                    kept[split] = kept.get(split, 0) | (rows & gone)


def _on_result(
    rule: FactorRule | None, carried: _Carried, position: int, gone: int
) -> dict[Split, int]:
    """Which rows a result has, and where."""
    kept: dict[Split, int] = {}
    if rule is None:
        return kept
    for cut, rows in carried.cuts():
        split = split_of(rule.results[position], rule.sizes, cut)
        if split is not None and rows & ~gone:
            kept[split] = kept.get(split, 0) | (rows & ~gone)
    return kept


def has_products(graph: OpGraph) -> bool:
    return any(op.name in HEAVY and op.flops for op in graph.ops)


def _moved(op: Op, carried: _Carried) -> int:
    """Rows along which the operation moves data."""
    return _union(rows for cut, rows in carried.cuts() if moves_along(op, cut))


def _union(sets: Iterable[int]) -> int:
    union = 0
    for each in sets:
        union |= each
    return union
