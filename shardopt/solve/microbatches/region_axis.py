"""The batch in loops and branches: what they carry, as a fixpoint.

Every region is walked like a step of its own, with what enters it. What a loop carries is what
enters it joined with what its body yields, until nothing changes:

    %r:2 = while(%h = %zeros, %g = %zeros)         %zeros: CONST, so %h and %g at first
      do { %n = tanh(dot %h, %x_t)                 %x_t: BATCHED, so %n, and %h from then on
           %t = add %g, dot(%x_t, %n)              contracts the batch: PARTIAL, and %g from then on
           return %n, %t }

The iterations of a loop are not microbatches: a dimension that it takes one position of at a time
(`dynamic_slice`) cannot be the batch. What is accumulated begins with the neutral element, as the
start of every microbatch's loop would be counted otherwise. How often a loop runs, and which branch
is taken, must not depend on the batch. In a loop in which each row ends by itself, a microbatch
needs no more iterations than its own rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from shardopt.graph.microbatching import Splat
from shardopt.graph.op_graph import Op, Region
from shardopt.solve.microbatches.axis import (
    IDEMPOTENT,
    NEUTRAL,
    WITHOUT_ESTIMATE,
    AxisKind,
    BranchSums,
    CouplingError,
    Mixing,
    RegionAxis,
    State,
    TimeAxis,
)

# A region with the states of its outside tensors, and the splats among them.
Walk = Callable[[Region, Sequence[State], Mapping[int, Splat]], TimeAxis]

_CONST = State(AxisKind.CONST, light=False)


@dataclass(frozen=True)
class Carrier:
    """A loop, branch or island, op number `index` of its graph; `states` and `splats` of its
    operands by position."""

    index: int
    op: Op
    states: Sequence[State]
    splats: Mapping[int, Splat]
    walk: Walk

    def enter(self, number: int, states: Sequence[State], splats: Mapping[int, Splat]) -> TimeAxis:
        """Walk region `number`; `states` and `splats` of operands by position."""
        region = self.op.regions[number]
        captured = range(region.direct, len(self.op.operands))
        positions = [*range(region.arguments), *captured]
        inside = {
            tensor: splats[position]
            for tensor, position in enumerate(positions)
            if position in splats
        }
        try:
            return self.walk(region, [states[position] for position in positions], inside)
        except CouplingError as error:
            error.enter(self.index, number)
            raise

    def refuse(self, message: str) -> CouplingError:
        return CouplingError(message, self.index)

    def refuse_inside(
        self,
        number: int,
        axis: TimeAxis,
        tensor: int,
        message: str,
        mixing: Mixing = Mixing.OTHER,
    ) -> None:
        """Raise an error at what makes a tensor of a region."""
        maker = axis.graph.producers()[tensor]
        if maker < 0:
            raise self.refuse(message)
        error = CouplingError(message, maker, mixing=mixing)
        error.enter(self.index, number)
        raise error

    def yielded(self, number: int, axis: TimeAxis, result: int) -> State:
        """The state of what a region yields."""
        tensor = axis.graph.outputs[result]
        state = axis.states[tensor]
        if state.kind is AxisKind.WHOLE:
            place = "a loop or branch" if self.op.island is None else "code for one device"
            self.refuse_inside(
                number,
                axis,
                tensor,
                f"makes, inside of {place}, what depends on a "
                "value reduced over the whole batch and is no sum over it",
            )
        return state


def flow_regions(
    index: int, op: Op, states: Sequence[State], splats: Mapping[int, Splat], walk: Walk
) -> RegionAxis:
    """`states` are those of the operands, captured values included. Raises CouplingError."""
    by_position = {k: splats[t] for k, t in enumerate(op.operands) if t in splats}
    carrier = Carrier(index, op, states, by_position, walk)
    return _flow_loop(carrier) if op.name == "while" else _flow_branches(carrier)


def _flow_branches(carrier: Carrier) -> RegionAxis:
    op = carrier.op
    axes = tuple(
        carrier.enter(number, carrier.states, carrier.splats) for number in range(len(op.regions))
    )
    try:
        results = tuple(_branch_result(carrier, axes, result) for result in range(len(op.results)))
    except CouplingError as error:
        error.sums = _branch_sums(carrier, axes)
        raise
    return RegionAxis(tuple(carrier.states), results, axes)


def _branch_result(carrier: Carrier, axes: Sequence[TimeAxis], result: int) -> State:
    joined: State | None = None
    for number, axis in enumerate(axes):
        state = carrier.yielded(number, axis, result)
        joined = state if joined is None else _join(carrier, joined, state)
    assert joined is not None
    if joined.kind is AxisKind.PARTIAL:
        for number, axis in enumerate(axes):
            _check_neutral(carrier, number, axis, result, joined)
    return joined


def _branch_sums(carrier: Carrier, axes: Sequence[TimeAxis]) -> BranchSums | None:
    """None where a sum enters the conditional, or rows leave it: a second one could not stand
    behind the microbatches."""
    yielded = {axis.states[tensor].kind for axis in axes for tensor in axis.graph.outputs}
    entering = {state.kind for state in carrier.states}
    if AxisKind.BATCHED in yielded or AxisKind.PARTIAL in entering:
        return None
    tensors = []
    for axis in axes:
        read = dict.fromkeys(
            t
            for op in axis.graph.ops
            if any(axis.states[result].kind is AxisKind.WHOLE for result in op.results)
            for t in op.operands
        )
        read.update(dict.fromkeys(axis.graph.outputs))
        sums = [t for t in read if axis.states[t].kind is AxisKind.PARTIAL]
        if any(axis.states[t].reducer != "add" for t in sums):
            return None
        tensors.append(tuple(sums))
    return BranchSums(carrier.index, tuple(tensors)) if any(tensors) else None


def _flow_loop(carrier: Carrier) -> RegionAxis:
    op, (_, body) = carrier.op, carrier.op.regions
    count = len(op.results)
    states = list(carrier.states)
    passed = {k for k in range(count) if body.graph.outputs[k] == k}
    fixed = {k: v for k, v in carrier.splats.items() if k >= count or k in passed}
    # A sum over the batch shows itself where terms are added to what is nothing yet. Of the values
    # for which that turns out to be wrong, nothing is assumed.
    assumed = dict.fromkeys(set(range(count)) - passed, 0)
    while True:
        summed = {k: v for k, v in assumed.items() if states[k].kind is AxisKind.CONST}
        axis = carrier.enter(1, states, {**fixed, **summed})
        joined = list(states)
        for k in range(count):
            joined[k] = _join(carrier, states[k], carrier.yielded(1, axis, k))
            if joined[k].kind is AxisKind.PARTIAL:
                _check_start(carrier, k, joined[k])
                _check_neutral(carrier, 1, axis, k, joined[k])
        if _extents(joined) != _extents(states):
            states = joined
        elif summed:
            assumed = {}
        else:
            break
    condition = carrier.enter(0, states, fixed)
    _check_condition(carrier, condition)
    return RegionAxis(tuple(states), tuple(states[:count]), (condition, axis))


def _extents(states: Sequence[State]) -> list[tuple[State, int]]:
    """States that differ in the extents of their splits, too."""
    return [(state, state.split.extent if state.split else 0) for state in states]


def _join(carrier: Carrier, first: State, second: State) -> State:
    kinds = {first.kind, second.kind}
    if AxisKind.CONST in kinds:
        return second if first.kind is AxisKind.CONST else first
    if kinds == {AxisKind.BATCHED, AxisKind.PARTIAL}:
        raise carrier.refuse("carries rows of the batch and sums over them in one value")
    if kinds == {AxisKind.PARTIAL}:
        if first.reducer != second.reducer:
            raise carrier.refuse(
                f"carries one value that is reduced over the batch by {first.reducer} and by "
                f"{second.reducer}"
            )
        return first
    assert first.split is not None and second.split is not None
    if first.split != second.split:
        raise carrier.refuse(
            f"carries the batch along dimension {first.split.dim} of a value, and along "
            f"dimension {second.split.dim} after that"
        )
    extent = gcd(first.split.extent, second.split.extent)
    return replace(first, split=replace(first.split, extent=extent))


def _check_start(carrier: Carrier, position: int, state: State) -> None:
    if carrier.states[position].kind is AxisKind.CONST and not _is_neutral(
        carrier.splats.get(position), state
    ):
        raise carrier.refuse(
            f"sums over the batch into a start value that is not {NEUTRAL.get(state.reducer)}"
        )


def _check_neutral(
    carrier: Carrier, number: int, axis: TimeAxis, result: int, state: State
) -> None:
    """What a region yields instead of a term counts once for each microbatch."""
    tensor = axis.graph.outputs[result]
    splat = (axis.batch.splats or {}).get(tensor)
    if axis.states[tensor].kind is AxisKind.CONST and not _is_neutral(splat, state):
        carrier.refuse_inside(
            number,
            axis,
            tensor,
            f"yields a value without rows where a sum over the batch needs "
            f"{NEUTRAL.get(state.reducer)}",
        )


def _is_neutral(splat: Splat | None, state: State) -> bool:
    return state.reducer in IDEMPOTENT or (
        splat is not None and splat == NEUTRAL.get(state.reducer)
    )


def _check_condition(carrier: Carrier, axis: TimeAxis) -> None:
    tensor = axis.graph.outputs[0]
    state = axis.states[tensor]
    is_estimated = (
        axis.batch.per_microbatch
        and state.kind is AxisKind.PARTIAL
        and state.reducer not in WITHOUT_ESTIMATE
    )
    ends_by_rows = carrier.op.regions[0].by_rows and state.kind is AxisKind.PARTIAL
    if state.kind is not AxisKind.CONST and not is_estimated and not ends_by_rows:
        carrier.refuse_inside(
            0,
            axis,
            tensor,
            "lets rows of the batch decide how often a loop runs for all of them",
            Mixing.DECIDES,
        )
