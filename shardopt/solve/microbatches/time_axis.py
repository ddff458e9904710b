"""Microbatching as sharding over time: which tensors of a training step carry the batch, and where
it is summed.

A batch cut into B microbatches is a virtual mesh axis of size B: microbatch i owns block i of every
dimension that carries the batch. `analyse` walks the ops once in program order, with their sharding
rules, and gives each tensor one of four kinds:

* CONST: does not depend on the batch; it may still have the batch's extent (a mask, random bits)
  and is then sliced;
* BATCHED: one dimension carries the batch (its `Split`); if the op has no cut, it runs on the full
  batch before the loop, and its result is sliced;
* PARTIAL: a contraction over the batch; every microbatch contributes one term, combined by
  `reducer`;
* WHOLE: depends on the complete batch, so it exists only after the loop.

An op that needs a WHOLE or PARTIAL value next to a BATCHED one, or that mixes rows of the batch,
*couples* the microbatches. That is harmless when it is `light` (made of batch inputs alone, cheap
enough to compute on the full batch before the loop), or when no matrix product follows it
(post-processing of outputs). Everything else is a `CouplingError`, unless `per_microbatch` lets a
microbatch stand for the whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import gcd

from shardopt.graph.microbatching import Cut, Splat, Split
from shardopt.graph.op_graph import Op, OpGraph
from shardopt.solve.microbatches.batch_factors import locate, moves_along, result_split
from shardopt.support.errors import UserError

# Ops whose cost makes a second, full-batch execution pointless: the microbatch body exists for
# them.
HEAVY = frozenset({"dot_general", "convolution", "while", "case", "custom_call"})
# For these a repeated or non-neutral start value would be counted once per microbatch.
_NEUTRAL = {"add": 0, "multiply": 1, "xor": 0}
_IDEMPOTENT = frozenset({"maximum", "minimum", "and", "or"})
# Ops that copy elements, unless they repeat some.
_LAYOUT = frozenset({"reshape", "transpose", "optimization_barrier", "broadcast_in_dim"})
_FLOAT_BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}


class AxisKind(Enum):
    CONST = "const"
    BATCHED = "batched"
    PARTIAL = "partial"
    WHOLE = "whole"


@dataclass(frozen=True)
class State:
    kind: AxisKind
    split: Split | None = None
    reducer: str = ""
    light: bool = True


class CouplingError(UserError):
    """`op` (index) mixes microbatches; `origin` is the op that made the accumulated value it needs,
    or None; `reader` an op of the model that needs what it makes, where one is known."""

    def __init__(self, message: str, op: int, origin: int | None = None) -> None:
        super().__init__(message)
        self.op = op
        self.origin = origin
        self.reader: int | None = None


@dataclass(frozen=True)
class Batch:
    """What is split and how.

    `splits` gives the batch dimension of each batch input; `weights` are the inputs no full-batch
    computation may read; `splats` the constants whose elements are all equal; `cheap` the loops and
    branches (by index) without products of matrices."""

    num_microbatches: int
    splits: Mapping[int, Split]
    weights: frozenset[int] = frozenset()
    splats: Mapping[int, Splat] | None = None
    per_microbatch: bool = False
    cheap: frozenset[int] = frozenset()


@dataclass(frozen=True)
class TimeAxis:
    """The kind of every tensor, the factor that carries the batch of every op, and the accepted
    couplings.

    `terms` gives, for an op that computes on the terms of an accumulation, the operands it reads
    so."""

    graph: OpGraph
    batch: Batch
    states: tuple[State, ...]
    cuts: tuple[Cut | None, ...]
    couplings: tuple[int, ...]
    terms: Mapping[int, frozenset[int]]

    def op_state(self, op: Op) -> State:
        """Results of one op are of one kind."""
        return self.states[op.results[0]]


def analyse(graph: OpGraph, batch: Batch) -> TimeAxis:
    """Raises CouplingError when the step cannot be cut along the batch."""
    walk = _Walk(graph, batch)
    for index in range(len(graph.ops)):
        walk.visit(index)
    walk.refuse_couplings()
    return TimeAxis(
        graph=graph,
        batch=batch,
        states=tuple(walk.states),
        cuts=tuple(walk.cuts),
        couplings=tuple(walk.couplings),
        terms=walk.terms,
    )


def is_layout(graph: OpGraph, op: Op) -> bool:
    """Whether the op only moves elements: worth doing on a partial value only if something that
    shrinks it follows."""
    sizes = {graph.tensors[t].size_bytes for t in (*op.operands, *op.results)}
    return op.name in _LAYOUT and len(sizes) == 1


class _Walk:
    """The forward pass; `visit` must see ops in program order."""

    def __init__(self, graph: OpGraph, batch: Batch) -> None:
        self.graph = graph
        self.batch = batch
        self.producers = graph.producers()
        self.consumers = graph.consumers()
        self.outputs = frozenset(graph.outputs)
        self.splats = dict(batch.splats or {})
        self.states = [self._input(tensor) for tensor in range(len(graph.tensors))]
        self.cuts: list[Cut | None] = [None] * len(graph.ops)
        self.couplings: dict[int, CouplingError] = {}
        self.estimated: set[int] = set()
        self.terms: dict[int, frozenset[int]] = {}

    def _input(self, tensor: int) -> State:
        split = self.batch.splits.get(tensor)
        return State(
            AxisKind.BATCHED if split else AxisKind.CONST,
            split,
            light=tensor not in self.batch.weights,
        )

    def visit(self, index: int) -> None:
        op = self.graph.ops[index]
        operands = [self.states[t] for t in op.operands]
        kinds = {state.kind for state in operands}
        light = all(state.light for state in operands)
        if kinds <= {AxisKind.CONST}:
            self._constant(op, light)
            return
        is_cheap = op.name not in HEAVY and op.rule is not None
        light = light and (is_cheap or index in self.batch.cheap)
        if AxisKind.BATCHED not in kinds:
            self._after_reduction(index, op, operands, light)
            return
        try:
            self._batched(index, op, operands, light)
        except CouplingError as error:
            # What is light runs on the full batch before the loop, where all rows are there.
            if not light:
                self.couplings[index] = error
            for result in op.results:
                split = self._resliced(result, op, operands) if light else None
                kind = AxisKind.BATCHED if split else AxisKind.WHOLE
                self.states[result] = State(kind, split, light=light)

    def _set(self, op: Op, state: State) -> None:
        for result in op.results:
            self.states[result] = state

    def _constant(self, op: Op, light: bool) -> None:
        self._set(op, State(AxisKind.CONST, light=light))
        if (
            op.name in ("broadcast_in_dim", "reshape", "transpose", "convert")
            and op.operands[0] in self.splats
        ):
            self.splats[op.results[0]] = self.splats[op.operands[0]]

    def _after_reduction(self, index: int, op: Op, operands: list[State], light: bool) -> None:
        """Of accumulated values: still one term a microbatch where `_keeps_partial`, else known
        after the loop."""
        terms = {
            t: s for t, s in zip(op.operands, operands, strict=True) if s.kind is AxisKind.PARTIAL
        }
        if terms and self._keeps_partial(op, terms):
            self.terms[index] = frozenset(terms)
            self._set(
                op, State(AxisKind.PARTIAL, reducer=next(iter(terms.values())).reducer, light=light)
            )
        else:
            self._set(op, State(AxisKind.WHOLE, light=light))

    def _keeps_partial(self, op: Op, terms: Mapping[int, State]) -> bool:
        """Whether accumulating the result is as exact as, and no larger than, accumulating the
        terms it is made of.

        Light terms never enter the body, so nothing is gained for them; of a term with other users,
        both the term and the result would be accumulated."""
        if any(state.light for state in terms.values()):
            return False
        if not self.batch.per_microbatch and any(
            len(self.consumers[t]) > 1 or t in self.outputs for t in terms
        ):
            return False
        if is_layout(self.graph, op):
            return True
        # Only sums commute with the linear operations below.
        if any(state.reducer != "add" for state in terms.values()):
            return False
        if op.name in ("add", "subtract", "negate"):
            return all(t in terms or self.splats.get(t) == 0 for t in op.operands)
        if op.name == "convert":
            return self._widens(op)
        if op.name in ("multiply", "divide"):
            return self._scales(op, terms)
        is_sum = op.name == "reduce" and op.reducer == "add" and len(op.operands) == 2
        return is_sum and self.splats.get(op.operands[1]) == 0

    def _scales(self, op: Op, terms: Mapping[int, State]) -> bool:
        """A gradient times a statistic that each microbatch estimates: both must be of the same
        microbatch."""
        first, second = op.operands
        scale = first if op.name == "multiply" and second in terms else second
        return scale in self.estimated and scale not in terms

    def _widens(self, op: Op) -> bool:
        """Accumulating after a widening conversion costs memory but keeps the precision the user
        asked for."""
        before, after = (
            _FLOAT_BITS.get(self.graph.tensors[t].dtype, 0) for t in (op.operands[0], op.results[0])
        )
        return 0 < before < after

    def _batched(self, index: int, op: Op, operands: list[State], light: bool) -> None:
        self._use_accumulated(index, op, operands)
        cut = self._find_cut(index, op, operands)
        assert op.rule is not None
        splits = [result_split(op, k, cut) for k in range(len(op.results))]
        if all(split is not None for split in splits):
            for result, split in zip(op.results, splits, strict=True):
                self.states[result] = State(AxisKind.BATCHED, split, light=light)
        elif any(split is not None for split in splits) or cut.factor not in op.rule.reduction:
            raise CouplingError("needs all rows of the batch", index)
        else:
            self._check_reduction(index, op)
            self._set(op, State(AxisKind.PARTIAL, reducer=op.reducer or "", light=light))
        self.cuts[index] = cut

    def _resliced(self, result: int, op: Op, operands: list[State]) -> Split | None:
        """Where rows that a light op has mixed (shuffled, sorted, summed up to each) are rows of a
        result: on the full batch before the loop it is exact, and so are slices of its results."""
        batched, split = next(
            (t, s.split) for t, s in zip(op.operands, operands, strict=True) if s.split is not None
        )
        rows = self.graph.tensors[batched].shape[split.dim]
        shape = self.graph.tensors[result].shape
        keeps_rows = shape[split.dim : split.dim + 1] == (rows,)
        return split if keeps_rows and split.extent % self.batch.num_microbatches == 0 else None

    def _use_accumulated(self, index: int, op: Op, operands: list[State]) -> None:
        """Accumulated operands of a batched op are light, or stand for the batch in every
        microbatch, or an error."""
        for tensor, state in zip(op.operands, operands, strict=True):
            if state.kind in (AxisKind.PARTIAL, AxisKind.WHOLE) and not state.light:
                if not self.batch.per_microbatch:
                    raise CouplingError(
                        "needs a value reduced over the whole batch", index, self.origin(tensor)
                    )
                self._estimate(tensor)

    def _estimate(self, tensor: int) -> None:
        """The body makes its own version of `tensor`, and so of what it is computed from."""
        pending = [tensor]
        while pending:
            tensor = pending.pop()
            state = self.states[tensor]
            if (
                tensor in self.estimated
                or state.light
                or state.kind not in (AxisKind.PARTIAL, AxisKind.WHOLE)
            ):
                continue
            self.estimated.add(tensor)
            if state.kind is AxisKind.WHOLE:
                pending.extend(self.graph.ops[self.producers[tensor]].operands)

    def _find_cut(self, index: int, op: Op, operands: list[State]) -> Cut:
        """The one factor through which all batched operands carry the batch."""
        if op.rule is None:
            raise CouplingError(
                "of batched values is not supported (it has no sharding rule)", index
            )
        cut: Cut | None = None
        for k, state in enumerate(operands):
            if state.split is None:
                continue
            operand_cut = None
            if k < len(op.rule.operands):
                operand_cut = locate(
                    op.rule.operands[k][state.split.dim], op.rule.sizes, state.split
                )
            if operand_cut is None:
                raise CouplingError(f"does not keep the batch of operand {k} in one piece", index)
            if cut is not None and (operand_cut.factor, operand_cut.outer) != (
                cut.factor,
                cut.outer,
            ):
                raise CouplingError("pairs every row of the batch with every other row", index)
            cut = (
                operand_cut
                if cut is None
                else Cut(cut.factor, cut.outer, gcd(cut.extent, operand_cut.extent))
            )
        assert cut is not None
        if cut.extent % self.batch.num_microbatches:
            raise CouplingError(
                f"splits the batch so that its major part has {cut.extent} rows, "
                f"not divisible by {self.batch.num_microbatches} microbatches",
                index,
            )
        if moves_along(op, cut):
            raise CouplingError("moves data along the batch", index)
        return cut

    def _check_reduction(self, index: int, op: Op) -> None:
        """The per-microbatch results must combine to the result for the whole batch."""
        if op.name == "gather":
            raise CouplingError("looks rows of the batch up by index", index)
        if op.reducer in _IDEMPOTENT:
            return
        if op.reducer not in _NEUTRAL:
            raise CouplingError(
                "reduces over the batch with a combination that is not a single associative op",
                index,
            )
        starts: tuple[int, ...] = ()
        if op.name == "reduce":
            starts = op.operands[len(op.results) : 2 * len(op.results)]
        elif op.name == "scatter":
            starts = op.operands[: len(op.results)]
        for tensor in starts:
            if tensor not in self.splats or self.splats[tensor] != _NEUTRAL[op.reducer]:
                raise CouplingError(
                    f"combines the batch into a start value that is not {_NEUTRAL[op.reducer]}",
                    index,
                )

    def origin(self, tensor: int) -> int | None:
        """The op that accumulates over (or couples) the batch, from which `tensor` is computed."""
        while (index := self.producers[tensor]) >= 0:
            if self.cuts[index] is not None or index in self.couplings:
                return index
            kinds = ((t, self.states[t].kind) for t in self.graph.ops[index].operands)
            tensor = next(
                (t for t, kind in kinds if kind in (AxisKind.PARTIAL, AxisKind.WHOLE)), -1
            )
            if tensor < 0:
                return index
        return None

    def refuse_couplings(self) -> None:
        """A coupling is post-processing only if neither it nor what needs it is heavy; raises the
        first that is not."""
        cause: dict[int, int] = {}
        for index, op in enumerate(self.graph.ops):
            causes = {cause[t] for t in op.operands if t in cause}
            if index in self.couplings:
                causes.add(index)
            if causes and op.name in HEAVY:
                # The first one: those behind it may be consequences.
                error = self.couplings[min(causes)]
                readers = self.consumers[op.results[0]] if index == error.op else (index,)
                error.reader = min(readers, default=None)
                raise error
            if causes:
                cause.update((result, min(causes)) for result in op.results)
