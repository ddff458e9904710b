"""Microbatching as sharding over time: which tensors of a training step carry the batch, and where
it is summed.

A batch cut into B microbatches is a virtual mesh axis of size B: microbatch i owns block i of every
dimension that carries the batch. `analyse` walks the ops once in program order, with their sharding
rules, and gives each tensor one of the four kinds of `shardopt.solve.microbatches.axis`. Loops and
branches that carry the batch are walked inside (`shardopt.solve.microbatches.region_axis`), and
code for one device (`shardopt.solve.microbatches.island_axis`).

An op that needs a WHOLE or PARTIAL value next to a BATCHED one, or that mixes rows of the batch,
*couples* the microbatches. That is harmless when it is `light` (made of batch inputs alone, cheap
enough to compute on the full batch before the loop), or when no matrix products follow it, or but
small ones (post-processing of outputs). Everything else is a `CouplingError`, unless
`per_microbatch` lets a microbatch stand for the whole batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd

from shardopt.graph.microbatching import Cut, Splat, Split
from shardopt.graph.op_graph import Op, OpGraph, Region
from shardopt.solve.microbatches.accumulation import Accumulation
from shardopt.solve.microbatches.axis import (
    IDEMPOTENT,
    NEUTRAL,
    READS_TILES,
    AxisKind,
    Batch,
    CouplingError,
    Mixing,
    RegionAxis,
    State,
    Tiles,
    TimeAxis,
)
from shardopt.solve.microbatches.batch_factors import locate, moves_along, result_split
from shardopt.solve.microbatches.island_axis import flow_island
from shardopt.solve.microbatches.region_axis import flow_regions

# Ops whose cost makes a second, full-batch execution pointless: the microbatch body exists for
# them.
HEAVY = frozenset({"dot_general", "convolution", "while", "case", "custom_call"})
# What a full batch of these costs is known.
_PRODUCTS = frozenset({"dot_general", "convolution"})
# Of the work of all products: products behind a coupling that are less, such as those of a metric,
# run on the full batch behind the loop.
_SMALL_SHARE = 0.05
# Their first operand decides which region runs.
_DECIDED = frozenset({"case", "if"})


def analyse(graph: OpGraph, batch: Batch) -> TimeAxis:
    """Raises CouplingError when the step cannot be cut along the batch."""
    walk = _walk(graph, batch)
    walk.refuse_couplings()
    return walk.axis()


def follow(graph: OpGraph, batch: Batch) -> TimeAxis:
    """As `analyse`, also where the step cannot be cut: behind what couples microbatches, values are
    of the whole batch."""
    return _walk(graph, batch).axis()


def _walk(graph: OpGraph, batch: Batch) -> _Walk:
    walk = _Walk(graph, batch)
    for index in range(len(graph.ops)):
        walk.visit(index)
    return walk


def _analyse_region(
    batch: Batch, region: Region, states: Sequence[State], splats: Mapping[int, Splat]
) -> TimeAxis:
    inside = replace(
        batch,
        splits={},
        weights=frozenset(),
        cheap=frozenset(),
        rows={},
        splats={**region.splats, **splats},
    )
    walk = _Walk(region.graph, inside, states)
    for index in range(len(region.graph.ops)):
        walk.visit(index)
    return walk.axis()


class _Walk:
    """The forward pass; `visit` must see ops in program order. In a region, `entering` are the
    states of its first tensors, none of them light: there is no place before or behind."""

    def __init__(
        self, graph: OpGraph, batch: Batch, entering: Sequence[State] | None = None
    ) -> None:
        self.graph = graph
        self.is_region = entering is not None
        self.batch = batch
        self.producers = graph.producers()
        self.consumers = graph.consumers()
        self.splats = dict(batch.splats or {})
        self.states = [self._input(tensor) for tensor in range(len(graph.tensors))]
        self.states[: len(entering or ())] = entering or ()
        self.cuts: list[Cut | None] = [None] * len(graph.ops)
        self.couplings: dict[int, CouplingError] = {}
        # How light operations mix rows, before the loop.
        self.mixings: dict[int, Mixing] = {}
        self.estimated: set[int] = set()
        self.terms: dict[int, frozenset[int]] = {}
        self.regions: dict[int, RegionAxis] = {}
        self.outputs = frozenset(graph.outputs)
        self.accumulation = Accumulation(
            graph, batch, self.is_region, self.splats, self.estimated, self.outputs
        )

    def axis(self) -> TimeAxis:
        return TimeAxis(
            graph=self.graph,
            batch=replace(self.batch, splats=self.splats),
            states=tuple(self.states),
            cuts=tuple(self.cuts),
            couplings=tuple(self.couplings),
            terms=self.terms,
            regions=self.regions,
        )

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
        is_cheap = (op.name not in HEAVY and op.rule is not None) or index in self.batch.cheap
        holds_terms = bool(op.regions) and self.is_region and AxisKind.PARTIAL in kinds
        if AxisKind.BATCHED not in kinds and not holds_terms:
            # Weights are known before the loop, too, and no rows of the batch are read with them.
            is_known = all(each.light or each.kind is AxisKind.CONST for each in operands)
            self._after_reduction(index, op, operands, is_known and is_cheap)
            return
        light = light and is_cheap
        try:
            if op.regions:
                self._enter_regions(index, op, operands, light)
            else:
                self._batched(index, op, operands, light)
        except CouplingError as error:
            if self.is_region:
                raise
            # What is light runs on the full batch before the loop, where all rows are there.
            if light:
                self.mixings[index] = error.mixing
            else:
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
        """Of accumulated values: still one term a microbatch where `keeps_partial`, else known
        after the loop."""
        terms = {
            t: s for t, s in zip(op.operands, operands, strict=True) if s.kind is AxisKind.PARTIAL
        }
        # In a region nothing can wait for a factor that is known behind the loop alone.
        waits = self.is_region and not self.batch.per_microbatch
        is_known = not waits or all(state.kind is not AxisKind.WHOLE for state in operands)
        if terms and is_known and self.accumulation.keeps_partial(op, terms):
            self.terms[index] = frozenset(terms)
            self._set(
                op, State(AxisKind.PARTIAL, reducer=next(iter(terms.values())).reducer, light=light)
            )
        else:
            self._set(op, State(AxisKind.WHOLE, light=light))

    def _batched(self, index: int, op: Op, operands: list[State], light: bool) -> None:
        self._use_accumulated(index, operands, op.operands)
        cut = self._find_cut(index, op, operands)
        tiles = self._tiles(index, op, operands)
        assert op.rule is not None
        splits = [result_split(op, k, cut) for k in range(len(op.results))]
        if all(self._is_cut_or_unread(*pair) for pair in zip(op.results, splits, strict=True)):
            for result, split in zip(op.results, splits, strict=True):
                self.states[result] = State(AxisKind.BATCHED, split, light=light, tiles=tiles)
        elif any(split is not None for split in splits) or cut.factor not in op.rule.reduction:
            raise CouplingError("needs all rows of the batch", index)
        else:
            self._check_reduction(index, op)
            self._set(op, State(AxisKind.PARTIAL, reducer=op.reducer or "", light=light))
        self.cuts[index] = cut

    def _is_cut_or_unread(self, result: int, split: Split | None) -> bool:
        """What nobody reads, such as the workspace of a kernel, may be that of any microbatch."""
        return split is not None or not (self.consumers[result] or result in self.outputs)

    def _tiles(self, index: int, op: Op, operands: Sequence[State]) -> Tiles | None:
        """Tiles of islands may be handed on, element by element."""
        tiles = next((state.tiles for state in operands if state.tiles is not None), None)
        shapes = {self.graph.tensors[tensor].shape for tensor in (*op.operands, *op.results)}
        if tiles is not None and (len(op.operands) != 1 or len(shapes) > 1):
            raise CouplingError(READS_TILES, index)
        return tiles

    def _enter_regions(self, index: int, op: Op, operands: list[State], light: bool) -> None:
        """What a loop or branch carries. Sums over the batch may enter it, and what decides about
        it or is known behind the microbatch loop may not."""
        for position, state in enumerate(operands):
            is_decision = op.name in _DECIDED and position == 0
            if state.tiles is not None and op.island is None:
                raise CouplingError(READS_TILES, index)
            if state.kind is AxisKind.WHOLE or is_decision:
                self._use_accumulated(index, [state], [op.operands[position]])
        try:
            states = [_entering(state) for state in operands]
            if op.island is None:
                axis = flow_regions(index, op, states, self.splats, self._walk_region)
            else:
                axis = flow_island(
                    index, op, states, self.splats, self._walk_region, self.batch.rows
                )
        except CouplingError as error:
            self._find_origin(op, error)
            raise
        self.regions[index] = axis
        for result, state in zip(op.results, axis.results, strict=True):
            self.states[result] = replace(state, light=light)

    def _walk_region(
        self, region: Region, states: Sequence[State], splats: Mapping[int, Splat]
    ) -> TimeAxis:
        return _analyse_region(self.batch, region, states, splats)

    def _find_origin(self, op: Op, error: CouplingError) -> None:
        """Where what an op in a region needs comes from, if from here."""
        if error.needs is None:
            return
        # The region that it stands in, seen from here.
        tensor = op.operands[op.regions[error.regions[0][1]].operand(error.needs)]
        error.needs = None
        if self.states[tensor].kind in (AxisKind.PARTIAL, AxisKind.WHOLE):
            (error.origin, source), error.origin_depth = self.origin(tensor), 0
            error.needs = source if error.origin is None else None

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

    def _use_accumulated(
        self, index: int, operands: Sequence[State], tensors: Sequence[int]
    ) -> None:
        """Accumulated operands of a batched op are light, or stand for the batch in every
        microbatch, or an error."""
        for tensor, state in zip(tensors, operands, strict=True):
            if state.kind in (AxisKind.PARTIAL, AxisKind.WHOLE) and not state.light:
                if not self.batch.per_microbatch:
                    raise self._needs_all_rows(index, tensor)
                self._estimate(tensor)

    def _needs_all_rows(self, index: int, tensor: int) -> CouplingError:
        origin, source = self.origin(tensor)
        if origin in self.mixings:
            message = "needs rows of the batch that are moved or mixed"
            return CouplingError(message, index, origin, mixing=self.mixings[origin])
        needs = source if origin is None else None
        return CouplingError("needs a value reduced over the whole batch", index, origin, needs)

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
            if state.kind is AxisKind.WHOLE and self.producers[tensor] >= 0:
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
                raise CouplingError(
                    "pairs every row of the batch with every other row", index, mixing=Mixing.PAIRS
                )
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
            raise CouplingError("moves data along the batch", index, mixing=Mixing.MOVES)
        return cut

    def _check_reduction(self, index: int, op: Op) -> None:
        """The per-microbatch results must combine to the result for the whole batch."""
        if op.name == "gather":
            raise CouplingError("looks rows of the batch up by index", index)
        if op.reducer in IDEMPOTENT:
            return
        if op.reducer not in NEUTRAL:
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
            if tensor not in self.splats or self.splats[tensor] != NEUTRAL[op.reducer]:
                raise CouplingError(
                    f"combines the batch into a start value that is not {NEUTRAL[op.reducer]}",
                    index,
                )

    def origin(self, tensor: int) -> tuple[int | None, int]:
        """The op that accumulates over (or couples) the batch, from which `tensor` is computed, and
        what it makes of that. In a region it may be none, and the tensor comes from outside."""
        while (index := self.producers[tensor]) >= 0:
            made_here = self.cuts[index] is not None or index in self.regions
            if made_here or index in self.couplings:
                return index, tensor
            kinds = ((t, self.states[t].kind) for t in self.graph.ops[index].operands)
            accumulated = (AxisKind.PARTIAL, AxisKind.WHOLE)
            source = next((t for t, kind in kinds if kind in accumulated), None)
            if source is None:
                return index, tensor
            tensor = source
        return None, tensor

    def refuse_couplings(self) -> None:
        """A coupling is post-processing only if neither it nor what needs it is heavy; raises the
        first that is not."""
        heavy = self._heavy_behind_couplings()
        ops = self.graph.ops
        is_product = all(ops[index].name in _PRODUCTS for index in heavy)
        total = sum(op.flops for op in _with_regions(self.graph) if op.name in _PRODUCTS)
        is_small = sum(ops[index].flops for index in heavy) < _SMALL_SHARE * total
        if not heavy or (is_product and is_small):
            return
        # The first one: those behind it may be consequences.
        index, cause = next(iter(heavy.items()))
        error = self.couplings[cause]
        readers = self.consumers[ops[index].results[0]] if index == cause else (index,)
        error.reader = min(readers, default=None)
        raise error

    def _heavy_behind_couplings(self) -> dict[int, int]:
        """Heavy operations that are a coupling or need one, each with the first of these."""
        cause: dict[int, int] = {}
        heavy: dict[int, int] = {}
        for index, op in enumerate(self.graph.ops):
            causes = {cause[t] for t in op.operands if t in cause}
            if index in self.couplings:
                causes.add(index)
            if not causes:
                continue
            cause.update((result, min(causes)) for result in op.results)
            if op.name in HEAVY:
                heavy[index] = min(causes)
        return heavy


def _with_regions(graph: OpGraph) -> Iterator[Op]:
    for op in graph.ops:
        yield op
        for region in op.regions:
            yield from _with_regions(region.graph)


def _entering(state: State) -> State:
    """An operand of a loop or branch as its regions see it. What is known before the microbatch
    loop, or stands for the batch in every microbatch, is one value to them."""
    if state.kind is AxisKind.WHOLE or (state.kind is AxisKind.PARTIAL and state.light):
        return State(AxisKind.CONST, light=False)
    return replace(state, light=False)
