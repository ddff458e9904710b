"""The batch in code that is written for one device of a mesh (`shardopt.graph.op_graph.Island`).

    %o:2 = island(%x: 32x8 split by {data}, %w)      %x: BATCHED, 32 rows
      { %h = dot %a: 4x8, %w                         4 of them on each of 8 devices
        %g = dot %a, %h                              a sum over the rows of one device
        %s = all_reduce %g over {data}               over all rows: PARTIAL
        return %h, %s }

A microbatch gives each device fewer rows, and not those it would have of the whole batch. So each
row must be computed alike on whichever device it lies:

* no collective takes a row to other rows, that is, goes over the axes that split them;
* no row meets what depends on the number of its device, or constants of other rows;
* what a device sums over its rows is summed over those of all devices before it is handed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod

from shardopt.graph.microbatching import Splat, Split
from shardopt.graph.op_graph import Dims, Island, Op
from shardopt.solve.microbatches.axis import (
    READS_TILES,
    AxisKind,
    CouplingError,
    RegionAxis,
    State,
    Tiles,
    TimeAxis,
)
from shardopt.solve.microbatches.region_axis import Carrier, Walk

Axes = frozenset[str]

_NUMBERS = frozenset({"partition_id", "replica_id"})
# Collectives after which all devices of a group have the sum, or a part of it.
_SUMS = frozenset({"all_reduce", "reduce_scatter"})


def flow_island(
    index: int,
    op: Op,
    states: Sequence[State],
    splats: Mapping[int, Splat],
    walk: Walk,
    wanted: Mapping[int, Split],
) -> RegionAxis:
    """`states` are those of the operands; `wanted` are tensors without the batch of which islands
    read rows. Raises CouplingError."""
    assert op.island is not None
    states = [
        _with_rows(state, wanted.get(tensor))
        for state, tensor in zip(states, op.operands, strict=True)
    ]
    by_position = {k: splats[t] for k, t in enumerate(op.operands) if t in splats}
    carrier = Carrier(index, op, states, by_position, walk)
    rows = _axes_of_rows(carrier, op.island)
    inside = [
        _on_a_device(carrier, op.island, state, dims)
        for state, dims in zip(states, op.island.operands, strict=True)
    ]
    axis = carrier.enter(0, inside, by_position)
    check = _Rows(carrier, frozenset(rows))
    check.follow(axis, op.regions[0].numbers)
    results = tuple(
        _of_all_devices(carrier, axis, position, dims, rows, wanted.get(op.results[position]))
        for position, dims in enumerate(op.island.results)
    )
    check.refuse_open(axis)
    return RegionAxis(tuple(states), results, (axis,))


def _with_rows(state: State, wanted: Split | None) -> State:
    is_wanted = wanted is not None and state.kind is AxisKind.CONST
    return replace(state, kind=AxisKind.BATCHED, split=wanted) if is_wanted else state


def _axes_of_rows(carrier: Carrier, island: Island) -> tuple[str, ...]:
    """The axes that split the rows of all operands that have any."""
    found = set()
    for state, dims in zip(carrier.states, island.operands, strict=True):
        if state.split is None:
            continue
        tiles = state.tiles
        if tiles is not None and (tiles.axes, tiles.dims) != (island.axes, dims):
            raise carrier.refuse(READS_TILES)
        found.add(dims[state.split.dim] if tiles is None else tiles.rows)
    if len(found) > 1:
        raise carrier.refuse("splits the batch by other axes in one operand than in another")
    return found.pop() if found else ()


def _count(island: Island, axes: Sequence[str]) -> int:
    sizes = dict(island.axes)
    return prod(sizes[axis] for axis in axes)


def _on_a_device(carrier: Carrier, island: Island, state: State, dims: Dims) -> State:
    if state.split is None:
        return state
    split, devices = state.split, _count(island, dims[state.split.dim])
    if devices > 1 and (split.outer > 1 or split.extent % devices):
        raise carrier.refuse(f"splits the batch over {devices} devices, which does not cut it")
    split = Split(split.dim, split.outer, split.extent // devices)
    return replace(state, split=split, tiles=None)


def _of_all_devices(
    carrier: Carrier,
    axis: TimeAxis,
    position: int,
    dims: Dims,
    rows: tuple[str, ...],
    wanted: Split | None,
) -> State:
    state, island = carrier.yielded(0, axis, position), carrier.op.island
    assert island is not None
    state = _with_rows(state, wanted)
    if state.split is None:
        return state
    along = dims[state.split.dim]
    if not set(rows) <= set(chain(*dims)) or (along and state.split.outer > 1):
        message = "hands rows of the batch on to other devices"
        carrier.refuse_inside(0, axis, axis.graph.outputs[position], message)
    split = replace(state.split, extent=state.split.extent * _count(island, along))
    # What a device keeps for its backward is written as if no other device had the same.
    tiles = None if along == rows else Tiles(island.axes, dims, rows)
    return replace(state, split=split, tiles=tiles)


@dataclass
class _Rows:
    """Follows what becomes of rows that are split by the axes `rows`: of each sum over them, the
    axes over which it is still `open`, to be summed; and of what depends on the number of the
    device, along which axes it `differs`."""

    carrier: Carrier
    rows: Axes
    open: dict[int, Axes] = field(default_factory=dict)
    differs: dict[int, Axes] = field(default_factory=dict)

    def follow(self, axis: TimeAxis, numbers: Mapping[int, Axes]) -> None:
        """`numbers`: see `Region`."""
        for index, op in enumerate(axis.graph.ops):
            along = _union(self.differs.get(tensor) for tensor in op.operands)
            if op.name in _NUMBERS:
                along = self.rows
            self.differs.update((result, numbers.get(result, along)) for result in op.results)
            states = [axis.states[tensor] for tensor in op.operands]
            if all(state.kind is AxisKind.CONST for state in states):
                continue
            if along & self.rows:
                self._refuse(index, "computes on rows by the number of their device")
            if index in axis.regions:
                self._enter(index, axis)
            else:
                self._visit(index, op, states, axis)

    def _visit(self, index: int, op: Op, states: Sequence[State], axis: TimeAxis) -> None:
        waiting = _union(self.open.get(tensor) for tensor in op.operands)
        if op.island is not None:
            over = frozenset(op.island.steps[0][1])
            if any(state.kind is AxisKind.BATCHED for state in states) and over & self.rows:
                self._refuse(index, "exchanges rows of the batch between devices")
            if op.name not in _SUMS and over & waiting:
                self._refuse(index, "exchanges sums over the rows of single devices")
            waiting -= over
        for result in op.results:
            if axis.states[result].kind is AxisKind.PARTIAL:
                is_new = any(state.kind is AxisKind.BATCHED for state in states)
                self.open[result] = waiting | (self.rows if is_new else frozenset())

    def _enter(self, index: int, axis: TimeAxis) -> None:
        """A loop or branch: what it sums is not known to be summed over all devices."""
        op = axis.graph.ops[index]
        for number, inside in enumerate(axis.regions[index].axes):
            try:
                _Rows(self.carrier, self.rows).follow(inside, {})
            except CouplingError as error:
                error.regions = ((self.carrier.index, 0), (index, number), *error.regions[1:])
                raise
        for result in op.results:
            if axis.states[result].kind is AxisKind.PARTIAL:
                self.open[result] = self.rows

    def refuse_open(self, axis: TimeAxis) -> None:
        for tensor in axis.graph.outputs:
            if self.open.get(tensor):
                message = "hands on sums over the rows of single devices"
                self.carrier.refuse_inside(0, axis, tensor, message)

    def _refuse(self, index: int, message: str) -> None:
        error = CouplingError(message, index)
        error.enter(self.carrier.index, 0)
        raise error


def _union(sets: Iterable[Axes | None]) -> Axes:
    return frozenset().union(*(each for each in sets if each))
