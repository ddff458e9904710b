"""Which inputs of a step hold the batch, from where their rows go.

Rows that meet are of one *family*: the inputs and labels of a step, say, or the features of a layer
with a dimension of its weights. The batch is a family

* that the step does a large part of its work along, or some where its rows are never mixed and
  state is known, that no table lookup picks from, and that the step does not accumulate over in
  parts itself;
* of which the pieces of state agree: each result that replaces one has its rows (caches), or none
  does (weights, whose gradients are sums over the batch). Where no state is known, that holds for
  all results;
* that is not a part of a tree of inputs, such as one matrix among the parameters;
* and that has more than all others of these signs: its rows are not mixed, they lie along leading
  dimensions, results have them, results lead with them.

No single sign decides: batch normalization mixes rows, recurrent networks lead with time. Element
types, names and sizes say nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np

from shardopt.graph.op_graph import OpGraph
from shardopt.solve.microbatches.row_flow import (
    FedBack,
    RowFlow,
    Rows,
    follow_rows,
    has_products,
)

# Share of the work of the largest family that a batch has at least, or a family that disputes it.
_LARGE_SHARE = 0.5
# Less than this is a side input, such as a schedule.
_SMALL_SHARE = 0.05
# Share of the inputs of a tree that run along the batch, if any do.
_MOST = 0.5


@dataclass(frozen=True)
class StepInputs:
    """Tensors of a graph: the arguments of a step, its results, which result replaces which
    argument (by number), arguments that are not considered, such as random keys, the tree that each
    argument is a leaf of, and what the loops of the graph hand on to their next iteration."""

    arguments: tuple[int, ...]
    results: tuple[int, ...]
    replaced: Mapping[int, int]
    ignored: frozenset[int]
    trees: tuple[str, ...]
    fed_back: tuple[FedBack, ...] = ()


@dataclass(frozen=True)
class Family:
    """Rows that run side by side.

    * `inputs`, `state`: the rows of arguments that the caller brings, and of state.
    * `extent`: how many rows, in the member that has the fewest.
    * `share`: the work along it, relative to the family with the most work.
    * `mixed`, `looked_up`, `parted`: as in `RowFlow`, for any member; `parts`: of members.
    * `agreed`: all pieces of state have its rows, or none does; of all results without state.
    * `whole_trees`: most leaves of each tree of inputs have its rows.
    * `whole_state`: all leaves of each tree of state of which any carries its rows, as dimension 0.
    * `kept`: all results that depend on it have its rows; `leads_results`: as dimension 0."""

    inputs: tuple[Rows, ...]
    state: tuple[Rows, ...]
    extent: int
    share: float
    mixed: bool
    looked_up: bool
    parted: bool
    parts: Mapping[Rows, int]
    agreed: bool
    whole_trees: bool
    whole_state: bool
    kept: bool
    leads_results: bool

    @property
    def leading(self) -> bool:
        return all(rows.dim == 0 for rows in self.inputs or self.state)

    @property
    def signs(self) -> tuple[bool, bool, bool, bool]:
        return not self.mixed, self.leading, self.kept, self.leading and self.leads_results

    @property
    def rank(self) -> tuple[int, float, bool, bool, float]:
        """Better families have larger ones."""
        # Rounded first: less than a tenth more work decides only where all else is equal.
        return sum(self.signs), round(self.share, 1), not self.mixed, self.leading, self.share


@dataclass(frozen=True)
class BatchSearch:
    """`batch` are the rows of the batch: of arguments that the caller brings, and of state that is
    carried along with them. Where it is empty, `disputed` are families that could all be it."""

    batch: tuple[Rows, ...]
    families: tuple[Family, ...]
    disputed: tuple[Family, ...] = ()


def search_batch(graph: OpGraph, step: StepInputs) -> BatchSearch:
    """Where the step takes its batch in parts and does the same with each, rows that have one place
    in all parts may be cut. Raises nothing: a step need not have a batch."""
    search = _search(graph, step, _Reader(graph, step, {}))
    parts = {} if search.batch else dict(_parts(graph, step, search.families))
    if not parts:
        return search
    again = _search(graph, step, _Reader(graph, step, parts))
    chosen = set(again.batch)
    # Steps of training, one after the other, need what all rows of the part before went into.
    is_mixed = any(
        family.mixed for family in again.families if chosen & {*family.inputs, *family.state}
    )
    return again if chosen and not is_mixed else search


def _parts(
    graph: OpGraph, step: StepInputs, families: Sequence[Family]
) -> Iterator[tuple[tuple[int, int], int]]:
    """Dimensions of arguments (number, dimension), and how many equal parts the step takes."""
    for rows, count in (pair for family in families for pair in family.parts.items()):
        if graph.tensors[step.arguments[rows.number]].shape[rows.dim] % count == 0:
            yield (rows.number, rows.dim), count


def _search(graph: OpGraph, step: StepInputs, reader: _Reader) -> BatchSearch:
    families = reader.families()
    single = _single_rows(graph, step)
    fitting = [] if _is_single(graph, step, single) else _fitting(graph, step, families)
    largest = max((family.share for family in families if family.agreed), default=0.0)
    agreeing = _agreeing(fitting)
    for possible in agreeing, [each for each in fitting if _keeps_first(each, step)]:
        large = [family for family in possible if family.share >= _LARGE_SHARE * largest]
        if large:
            return _choose(possible, large, families, step)
    apart = [family for family in agreeing if _is_apart(family, step)]
    return _choose(agreeing, apart, families, step) if apart else BatchSearch(single, families)


def _choose(
    possible: Sequence[Family],
    large: Sequence[Family],
    families: tuple[Family, ...],
    step: StepInputs,
) -> BatchSearch:
    best = max(large, key=lambda family: family.rank)
    disputed = tuple(f for f in large if f.signs == best.signs and f.extent != best.extent)
    if disputed:
        return BatchSearch((), families, (best, *disputed))
    # Not all that is brought for an example meets: two towers, real and generated images.
    chosen = [f for f in possible if f.extent == best.extent and _goes_with(f, best, step)]
    members = {rows for family in chosen for rows in (*family.inputs, *family.state)}
    return BatchSearch(tuple(sorted(members)), families)


def _goes_with(family: Family, best: Family, step: StepInputs) -> bool:
    """Weights of equal size are told apart by their signs, or are known to be state."""
    return family.signs == best.signs or (bool(step.replaced) and family.leading and best.leading)


def _fitting(graph: OpGraph, step: StepInputs, families: Sequence[Family]) -> list[Family]:
    """Families that may be the batch, or part of it, if results agree. One of state alone is known
    by the products that run along it, one in the middle by results that have it, or state."""
    return [
        family
        for family in families
        if family.whole_trees
        and not family.looked_up
        and not family.parted
        and (family.leading or (not family.mixed and (family.kept or step.replaced)))
        and (family.inputs or (_leads_state(family) and has_products(graph)))
        and family.share >= _SMALL_SHARE
    ]


def _leads_state(family: Family) -> bool:
    """Whether state has the rows first: all of it, or some where nothing mixes them, such as tokens
    beside caches of all layers in one array."""
    if family.leading:
        return bool(family.state)
    return not family.mixed and family.kept and any(rows.dim == 0 for rows in family.state)


def _agreeing(fitting: Sequence[Family]) -> list[Family]:
    possible = [family for family in fitting if family.agreed]
    if any(family.inputs and family.leading for family in possible):
        return [family for family in possible if family.inputs]
    return possible


def _keeps_first(family: Family, step: StepInputs) -> bool:
    """Whether what keeps the rows of inputs is told from weights, although other results sum over
    them."""
    if family.mixed or not family.inputs:
        return False
    return family.whole_state if step.replaced else family.leading and family.leads_results


def _is_apart(family: Family, step: StepInputs) -> bool:
    """Whether the rows of inputs are told from weights although most of the work is not done along
    them: that of an optimizer which multiplies matrices, or of rows that the step makes itself."""
    return bool(step.replaced and family.inputs) and family.leading and not family.mixed


def _brought(step: StepInputs) -> list[int]:
    """The arguments that the caller brings anew in each step."""
    numbers = range(len(step.arguments))
    return [k for k in numbers if k not in step.replaced and k not in step.ignored]


def _single_rows(graph: OpGraph, step: StepInputs) -> tuple[Rows, ...]:
    """The leading dimensions of a batch of one, of which no operation tells."""
    lead = {k: graph.tensors[step.arguments[k]].shape[:1] for k in _brought(step)}
    leaves = Counter(step.trees[k] for k, extent in lead.items() if extent)
    single = Counter(step.trees[k] for k, extent in lead.items() if extent == (1,))
    whole = {tree for tree, count in single.items() if count >= _MOST * leaves[tree]}
    return tuple(
        Rows(k, 0) for k, extent in lead.items() if extent == (1,) and step.trees[k] in whole
    )


def _is_single(graph: OpGraph, step: StepInputs, single: Sequence[Rows]) -> bool:
    """Whether results have one row as well, so that no other dimension is the batch."""
    state = set(step.replaced.values())
    shapes = [graph.tensors[t].shape for k, t in enumerate(step.results) if k not in state]
    leads = {shape[0] for shape in shapes if shape}
    return bool(single) and leads == {1}


class _Reader:
    """Makes families of what became of all rows."""

    def __init__(
        self, graph: OpGraph, step: StepInputs, parts: Mapping[tuple[int, int], int]
    ) -> None:
        self.graph, self.step = graph, step
        self.flow = follow_rows(graph, step.arguments, step.fed_back, parts)
        self.leaves = Counter(
            step.trees[k] for k in _brought(step) if graph.tensors[step.arguments[k]].shape
        )
        self._of_result = {t: reduce(or_, self.flow.kept[t].values(), 0) for t in step.results}
        states = [step.results[k] for k in step.replaced.values()]
        # There are about as many families as dimensions of weights: what is known of each is
        # gathered in one pass over results, not by asking all of them for each.
        self._members = _joined(self.flow)
        self._family_of = np.zeros(len(self.flow.rows), dtype=np.int64)
        for number, members in enumerate(self._members):
            self._family_of[members] = number
        self._having: list[list[int]] = [[] for _ in self._members]
        for tensor in step.results:
            for number in self._families_of(self._of_result[tensor]):
                self._having[number].append(tensor)
        self._results, self._states = map(self._fates, (step.results, states or step.results))

    def families(self) -> tuple[Family, ...]:
        work = np.zeros(len(self._members))
        for rows, flops in self.flow.flops.items():
            work[self._families_of(rows)] += flops
        largest = float(work.max(initial=0.0)) or 1.0
        return tuple(self._family(number, flops / largest) for number, flops in enumerate(work))

    def _families_of(self, rows: int) -> np.ndarray:
        """Those that have any of some rows, rising."""
        return np.unique(self._family_of[_bits(rows)])

    def _family(self, number: int, share: float) -> Family:
        step, flow = self.step, self.flow
        numbers = self._members[number].tolist()
        family = sum(1 << k for k in numbers)
        members = [flow.rows[k] for k in numbers]
        inputs = [rows for rows in members if rows.number not in step.replaced]
        dims = [dim for tensor in self._having[number] for dim in self._dims(tensor, family)]
        state = tuple(self._carried(members, family))
        return Family(
            inputs=tuple(rows for rows in inputs if rows.number not in step.ignored),
            state=state,
            extent=min(self._extent(rows) for rows in members),
            share=float(share),
            mixed=bool(flow.mixed & family),
            looked_up=bool(flow.looked_up & family),
            parted=bool(flow.parted & family),
            parts={flow.rows[k]: n for k, n in flow.parts.items() if family >> k & 1},
            agreed=not all(fate[number] for fate in self._states),
            whole_trees=self._has_whole_trees(inputs),
            whole_state=self._has_whole_state(state),
            kept=bool(dims) and [bool(fate[number]) for fate in self._results] == [True, False],
            leads_results=bool(dims) and not any(dims),
        )

    def _extent(self, rows: Rows) -> int:
        return self.graph.tensors[self.step.arguments[rows.number]].shape[rows.dim] // rows.parts

    def _dims(self, tensor: int, family: int) -> list[int]:
        return [split.dim for split, rows in self.flow.kept[tensor].items() if rows & family]

    def _fates(self, results: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The families whose rows some results have, and those of which some have only what rows
        were summed to, bool `[families]` each. Results that do not depend on a family do not
        count."""
        # Of the distinct rows that results have, with all that was summed to them.
        distinct = {
            (self._of_result[t], self.flow.summed[t])
            for t in results
            if self.graph.tensors[t].shape
        }
        kept, summed = np.zeros((2, len(self._members)), dtype=bool)
        for rows, others in distinct:
            has, lost = np.zeros((2, len(kept)), dtype=bool)
            has[self._family_of[_bits(rows)]] = True
            lost[self._family_of[_bits(others)]] = True
            kept |= has
            summed |= lost & ~has
        return kept, summed

    def _carried(self, members: Sequence[Rows], family: int) -> Iterator[Rows]:
        """State whose successor has the same rows."""
        for rows in members:
            result = self.step.replaced.get(rows.number)
            if result is not None and rows.dim in self._dims(self.step.results[result], family):
                yield rows

    def _has_whole_trees(self, inputs: Sequence[Rows]) -> bool:
        trees = {rows.number: self.step.trees[rows.number] for rows in inputs}
        counts = Counter(trees.values())
        return len(trees) == len(inputs) and all(
            count >= _MOST * self.leaves[tree] for tree, count in counts.items()
        )

    def _has_whole_state(self, state: Sequence[Rows]) -> bool:
        of = self.step.trees
        trees = {of[rows.number] for rows in state}
        carrying = {rows.number for rows in state if rows.dim == 0}
        return all(number in carrying for number in self.step.replaced if of[number] in trees)


def _joined(flow: RowFlow) -> list[np.ndarray]:
    """Sets of rows that have met, directly or not, in the order of their first members; int64,
    rising. Rows that met nobody are families, too."""
    first = np.arange(len(flow.rows))  # of each, the first of its set
    for met in flow.met:
        firsts = first[_bits(met)]
        if (firsts != firsts[0]).any():
            first[np.isin(first, firsts)] = firsts.min()
    return [np.flatnonzero(first == row) for row in np.unique(first)]


def _bits(rows: int) -> np.ndarray:
    """The numbers of the bits of a mask, int64, rising."""
    data = rows.to_bytes(rows.bit_length() // 8 + 1, "little")
    return np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little"))
