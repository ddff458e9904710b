"""Place every op of a training step before, inside or after its microbatch loop, on demand.

One walk over the ops from last to first: what is asked for (function results, at first) decides
where an op runs and what it asks of its operands. An op may run in two places, at two sizes, or
nowhere. Before the loop stands what the body captures; everything else that needs no microbatch
stands after it, next to the updates that use it.

A value with batch extent that does not depend on the batch (a mask, an iota, a broadcast bias) is
made in the body at microbatch size where its sharding rule allows that; otherwise it is made once
before the loop and sliced. Inside of loops and branches there is only the body, and such a value
is made and sliced there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import prod

from shardopt.graph.microbatching import (
    Accumulator,
    BodyOp,
    Cut,
    RegionPlan,
    Split,
    TimePlan,
    View,
)
from shardopt.graph.op_graph import Op, OpGraph, Region
from shardopt.solve.microbatches.accumulation import is_layout
from shardopt.solve.microbatches.axis import (
    WITHOUT_ESTIMATE,
    AxisKind,
    Batch,
    CouplingError,
    RegionAxis,
    RowsWanted,
    State,
    TimeAxis,
)
from shardopt.solve.microbatches.batch_factors import (
    locate,
    moves_along,
    operand_split,
    result_split,
)
from shardopt.solve.microbatches.sources import (
    MAX_CLONED_OPS,
    count_cloned_ops,
    find_sources,
)
from shardopt.solve.microbatches.time_axis import analyse


class ValuePlace(IntEnum):
    """Where in `@main` a full-size value is needed; a value made before the loop serves the
    epilogue too."""

    NOWHERE = 0
    EPILOGUE = 1
    PROLOGUE = 2


def plan_loop(graph: OpGraph, batch: Batch) -> tuple[TimeAxis, TimePlan]:
    """Raises CouplingError where the step cannot be cut along the batch."""
    while True:
        axis = analyse(graph, batch)
        try:
            return axis, place_ops(axis)
        except RowsWanted as want:
            if want.rows.keys() <= batch.rows.keys():
                raise
            # Masks, say, that a block keeps for its backward.
            batch = replace(batch, rows={**batch.rows, **want.rows})


def place_ops(axis: TimeAxis) -> TimePlan:
    """Raises RowsWanted for what `Batch.rows` lacks, and CouplingError when an estimate is needed
    where no op of the body can make it."""
    walk = _Placement(axis)
    for tensor in axis.graph.outputs:
        walk.want_result(tensor)
    walk.visit_all()
    if walk.refusal is not None:
        raise RowsWanted(walk.refusal, walk.wanted)
    return walk.plan()


@dataclass
class _Demand:
    """What later ops ask of one tensor; `body` keeps the views in the order they were asked for."""

    main: ValuePlace = ValuePlace.NOWHERE
    body: dict[View, None] = field(default_factory=dict)


class _Placement:
    """The backward pass; `visit` must see ops in reverse program order."""

    def __init__(self, axis: TimeAxis) -> None:
        self.axis = axis
        self.graph = axis.graph
        self.demands = [_Demand() for _ in axis.graph.tensors]
        self.cloned_ops = count_cloned_ops(axis.graph)
        self.sources = find_sources(axis.graph)
        self.places = [ValuePlace.NOWHERE] * len(axis.graph.ops)
        self.body: dict[tuple[int, Cut | None], None] = {}
        self.captures: set[int] = set()
        self.slices: dict[View, None] = {}
        self.accumulators: dict[int, Accumulator] = {}
        self.region_plans: dict[int, tuple[RegionPlan, ...]] = {}
        # Rows that islands want of tensors without the batch; the first island's error without.
        self.wanted: dict[int, Split] = {}
        self.refusal: CouplingError | None = None

    def want_result(self, tensor: int) -> None:
        self._want_main(tensor, ValuePlace.EPILOGUE)

    def visit_all(self) -> None:
        for index in reversed(range(len(self.graph.ops))):
            self.visit(index)
        for tensor in self.graph.inputs:
            self.visit_input(tensor)

    # ---- demands ----

    def _want_main(self, tensor: int, place: ValuePlace) -> None:
        self.demands[tensor].main = max(self.demands[tensor].main, place)

    def _want_operands(self, op: Op, place: ValuePlace) -> None:
        for tensor in op.operands:
            self._want_main(tensor, place)

    def _run_in_main(self, index: int, place: ValuePlace) -> None:
        self.places[index] = place
        self._want_operands(self.graph.ops[index], place)

    def _run_in_body(self, index: int, cut: Cut | None) -> None:
        if (index, cut) not in self.body:
            self.body[index, cut] = None
            for view in self._operands(index, cut):
                self.demands[view.tensor].body.setdefault(view)

    def _operands(self, index: int, cut: Cut | None) -> tuple[View, ...]:
        op = self.graph.ops[index]
        if index in self.axis.regions:
            return self._region_operands(index, op, self.axis.regions[index])
        terms = self.axis.terms.get(index, frozenset())
        return tuple(
            View(
                tensor, operand_split(op, k, cut), "" if tensor in terms else self._estimate(tensor)
            )
            for k, tensor in enumerate(op.operands)
        )

    def _region_operands(self, index: int, op: Op, axis: RegionAxis) -> tuple[View, ...]:
        """What enters the block of a loop or decides about a branch, then what regions capture."""
        if index not in self.region_plans:
            self.region_plans[index] = self._plan_regions(index, op, axis)
        direct = op.regions[0].direct
        views = [
            View(
                tensor,
                state.split,
                ""
                if op.name == "while" and state.kind is AxisKind.PARTIAL
                else self._estimate(tensor),
            )
            for tensor, state in zip(op.operands[:direct], axis.operands, strict=False)
        ]
        for plan in self.region_plans[index]:
            views += [view for _, view in plan.captures if view not in views[direct:]]
        return tuple(views)

    def _plan_regions(self, index: int, op: Op, axis: RegionAxis) -> tuple[RegionPlan, ...]:
        plans = []
        for number, (region, inside) in enumerate(zip(op.regions, axis.axes, strict=True)):
            # How often a loop runs is no result of it.
            states = (None,) if op.name == "while" and number == 0 else axis.results
            walk = self._placement_in(op, region, inside)
            try:
                plans.append(_plan_region(walk, op, region, states))
                if walk.refusal is not None and op.island is None:
                    raise walk.refusal  # only of the step itself it can be known what has rows
            except CouplingError as error:
                error.enter(index, number)
                raise
            if walk.refusal is not None:
                walk.refusal.enter(index, number)
                self.refusal = self.refusal or walk.refusal
                self.wanted.update(walk.wanted)
        return tuple(plans)

    def _placement_in(self, op: Op, region: Region, axis: TimeAxis) -> _RegionPlacement:
        return _RegionPlacement(axis) if op.island is None else _IslandPlacement(op, region, axis)

    def _estimate(self, tensor: int) -> str:
        """The reducer of an accumulated tensor that stands, in an op of the body, for the whole
        batch."""
        state = self.axis.states[tensor]
        return "" if state.light else state.reducer

    # ---- ops, last to first ----

    def visit(self, index: int) -> None:
        op = self.graph.ops[index]
        state = self.axis.op_state(op)
        if index in self.axis.regions:
            self._visit_regions(index, op)
        elif state.kind in (AxisKind.CONST, AxisKind.WHOLE):
            self._visit_unbatched(index, op)
        elif not state.light or (
            state.kind is AxisKind.BATCHED and self.axis.cuts[index] is not None
        ):
            self._visit_batched(index, op)
        else:
            self._keep_before_loop(op)
        place = max(self.demands[result].main for result in op.results)
        if (
            place is not ValuePlace.NOWHERE
            and self.places[index] is ValuePlace.NOWHERE
            and self._runs_in_main(index)
        ):
            self._run_in_main(index, place)

    def _runs_in_main(self, index: int) -> bool:
        return not any(result in self.accumulators for result in self.graph.ops[index].results)

    def _visit_unbatched(self, index: int, op: Op) -> None:
        """Constants, and values of the complete batch: estimates of these must be made in the
        body."""
        state = self.axis.op_state(op)
        must_clone = state.kind is AxisKind.WHOLE and not state.light
        reads_batch = any(self.axis.states[t].kind is AxisKind.BATCHED for t in op.operands)
        for k, result in enumerate(op.results):
            for view in self.demands[result].body:
                cut = None if reads_batch else self._cut_for(op, k, view.split)
                if (
                    view.split is None
                    and not reads_batch
                    and (must_clone or self._worth_cloning(op, result))
                ):
                    self._run_in_body(index, None)
                elif view.split is not None and cut is not None:
                    self._run_in_body(index, cut)
                elif must_clone:
                    raise CouplingError("cannot stand for the whole batch in one microbatch", index)
                else:
                    self._provide(view)

    def _worth_cloning(self, op: Op, result: int) -> bool:
        if op.name == "optimization_barrier":  # it keeps apart what runs in the body
            return True
        grows = op.name == "broadcast_in_dim" and all(
            self.graph.tensors[t].size_bytes < self.graph.tensors[result].size_bytes
            for t in op.operands
        )
        return grows or self.cloned_ops[result] <= MAX_CLONED_OPS

    def _cut_for(self, op: Op, result: int, split: Split | None) -> Cut | None:
        """How to run an unbatched op in the body so that its result is split, or None if it must be
        sliced."""
        if (
            split is None
            or op.rule is None
            or op.results[result] in self.sources[op.results[result]]
        ):
            return None
        # The block differs from microbatch to microbatch, and an attribute cannot.
        if op.name == "constant" and op.results[result] not in (self.axis.batch.splats or {}):
            return None
        cut = locate(op.rule.results[result][split.dim], op.rule.sizes, split)
        if cut is None or moves_along(op, cut) or cut.extent % self.axis.batch.num_microbatches:
            return None
        if op.name == "iota" and cut.outer != 1:
            return None  # blocks are not consecutive numbers
        if any(result_split(op, k, cut) is None for k in range(len(op.results))):
            return None
        return cut

    def _visit_batched(self, index: int, op: Op) -> None:
        """Batched ops and contractions over the batch: in the body, and after the loop what it
        collects."""
        for result in op.results:
            if self.demands[result].main is ValuePlace.EPILOGUE and not self._moves_to_epilogue(
                op, result
            ):
                self._collect(result)
            for view in self.demands[result].body:
                self._check_estimate(index, view)
        if any(self.demands[r].body or r in self.accumulators for r in op.results):
            self._run_in_body(index, self.axis.cuts[index])

    def _visit_regions(self, index: int, op: Op) -> None:
        """A loop or branch that carries the batch: each of its results in its own way."""
        for result in op.results:
            is_read_after = self.demands[result].main is ValuePlace.EPILOGUE
            if is_read_after and not self.axis.states[result].light:
                self._collect(result)
            for view in self.demands[result].body:
                self._check_estimate(index, view)
        if any(self.demands[r].body or r in self.accumulators for r in op.results):
            self._run_in_body(index, None)

    def _moves_to_epilogue(self, op: Op, result: int) -> bool:
        """Cheap functions of the batch inputs are computed on the full batch; a mere change of
        layout comes last."""
        state = self.axis.states[result]
        return state.light or (
            state.kind is AxisKind.PARTIAL
            and is_layout(self.graph, op)
            and not self.demands[result].body
        )

    def _check_estimate(self, index: int, view: View) -> None:
        """B times a sum over this microbatch estimates the sum over the batch; a product has no
        such estimate."""
        if view.estimate and (view.split is not None or view.estimate in WITHOUT_ESTIMATE):
            raise CouplingError("cannot stand for the whole batch in one microbatch", index)

    def _collect(self, tensor: int) -> None:
        state = self.axis.states[tensor]
        if state.tiles is not None:
            raise CouplingError(
                "hands on rows of the batch as single devices have them",
                self.graph.producers()[tensor],
            )
        self.accumulators[tensor] = Accumulator(View(tensor, state.split), state.reducer)

    def _keep_before_loop(self, op: Op) -> None:
        """What mixes batch inputs alone is computed on the full batch, exactly, and the body
        captures or slices it."""
        for result in op.results:
            for view in self.demands[result].body:
                self._provide(view)

    def _provide(self, view: View) -> None:
        """Make a value before the loop, for the body to capture whole or in slices."""
        self._want_main(view.tensor, ValuePlace.PROLOGUE)
        if view.split is None:
            self.captures.add(view.tensor)
        else:
            self.slices.setdefault(view)

    def visit_input(self, tensor: int) -> None:
        for view in self.demands[tensor].body:
            self._provide(view)

    # ---- the result ----

    def body_ops(self) -> tuple[BodyOp, ...]:
        # Program order, and of an op that runs at two sizes the full one first.
        order = sorted(self.body, key=lambda key: (key[0], key[1] is not None, str(key[1])))
        return tuple(self._body_op(index, cut) for index, cut in order)

    def plan(self) -> TimePlan:
        return TimePlan(
            num_microbatches=self.axis.batch.num_microbatches,
            prologue=tuple(
                k for k, place in enumerate(self.places) if place is ValuePlace.PROLOGUE
            ),
            body=self.body_ops(),
            epilogue=tuple(
                k for k, place in enumerate(self.places) if place is ValuePlace.EPILOGUE
            ),
            captures=tuple(sorted(self.captures)),
            slices=tuple(sorted(self.slices, key=lambda view: (view.tensor, str(view.split)))),
            accumulators=tuple(self.accumulators[t] for t in sorted(self.accumulators)),
        )

    def _body_op(self, index: int, cut: Cut | None) -> BodyOp:
        op = self.graph.ops[index]
        if index in self.axis.regions:
            views = tuple(View(t, self.axis.states[t].split) for t in op.results)
        else:
            views = tuple(View(t, result_split(op, k, cut)) for k, t in enumerate(op.results))
        plans = self.region_plans.get(index, ())
        return BodyOp(index, cut, self._operands(index, cut), views, plans)


class _RegionPlacement(_Placement):
    """A region of a loop or branch: all of it runs in the body. `entering` are the views of what
    comes from outside."""

    def __init__(self, axis: TimeAxis) -> None:
        super().__init__(axis)
        self.entering: dict[View, None] = {}

    def visit_input(self, tensor: int) -> None:
        self.entering.update(self.demands[tensor].body)

    def view_of(self, tensor: int, state: State | None) -> View:
        if state is None:
            return View(tensor, None, self._estimate(tensor))
        return View(tensor, state.split)

    def _worth_cloning(self, op: Op, result: int) -> bool:
        return True

    def _provide(self, view: View) -> None:
        """The op runs at its full size, and the view is a slice of its result."""
        producer = self.graph.producers()[view.tensor]
        if producer >= 0:
            self._run_in_body(producer, None)


class _DevicePlacement(_RegionPlacement):
    """Code for one device, a `region` of `op`: which rows of the batch it has, it cannot tell."""

    def __init__(self, op: Op, region: Region, axis: TimeAxis) -> None:
        super().__init__(axis)
        self.op, self.region = op, region

    def visit_input(self, tensor: int) -> None:
        is_argument = tensor < self.region.arguments
        if is_argument and self.axis.states[tensor].kind is AxisKind.CONST:
            for view in self.demands[tensor].body:
                if view.split is not None:
                    self._want(tensor, view.split)
        super().visit_input(tensor)

    def _want(self, tensor: int, split: Split) -> None:
        raise self._refusal(self.graph.consumers()[tensor][0])

    def _cut_for(self, op: Op, result: int, split: Split | None) -> Cut | None:
        along = self.region.counts.get(op.results[result])
        is_place = split is not None and along == split.dim
        return None if is_place else super()._cut_for(op, result, split)

    def _placement_in(self, op: Op, region: Region, axis: TimeAxis) -> _RegionPlacement:
        return _DevicePlacement(op, region, axis)

    def _provide(self, view: View) -> None:
        if view.split is not None:
            raise self._refusal(self.graph.producers()[view.tensor])
        super()._provide(view)

    def _refusal(self, op: int) -> CouplingError:
        return CouplingError("has a value of its own for each row of a device", op)


class _IslandPlacement(_DevicePlacement):
    """Of what it is handed it may have the rows."""

    def _want(self, tensor: int, split: Split) -> None:
        assert self.op.island is not None
        sizes = dict(self.op.island.axes)
        along = self.op.island.operands[tensor][split.dim]
        extent = split.extent * prod(sizes[axis] for axis in along)
        self.wanted[self.op.operands[tensor]] = replace(split, extent=extent)
        self.refusal = self.refusal or self._refusal(self.graph.consumers()[tensor][0])


def _plan_region(
    walk: _RegionPlacement, op: Op, region: Region, states: Sequence[State | None]
) -> RegionPlan:
    axis = walk.axis
    results = tuple(map(walk.view_of, axis.graph.outputs, states))
    for view in results:
        walk.demands[view.tensor].body.setdefault(view)
    walk.visit_all()
    arguments = range(region.arguments)
    captured = [view for view in walk.entering if view.tensor not in arguments]
    return RegionPlan(
        arguments=tuple(View(t, axis.states[t].split) for t in arguments),
        captures=tuple(
            (view, replace(view, tensor=op.operands[region.operand(view.tensor)]))
            for view in captured
        ),
        body=walk.body_ops(),
        results=results,
    )
