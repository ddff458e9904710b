"""The forward operations of a graph as a line of units, which layers are cut between.

The layer DP is quadratic in the units. Operations lighter than 1/1000 of the whole are joined with
their neighbours: no balanced cut can depend on one of them. Which bytes cross a cut does depend on
its place, so nothing is joined across the borders of blocks that the model repeats, nor, as far as
the number of units allows, across the place between two operators where fewest bytes cross."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from shardopt.graph.op_graph import OpGraph
from shardopt.solve.stages.layers.block_borders import block_spans, places_between
from shardopt.solve.stages.layers.forward_line import ForwardLine
from shardopt.solve.stages.layers.layer_dp import Value

_MAX_UNITS = 1000
# Operators that do the work of a model; what blocks of it are recognised by.
_OPERATORS = frozenset({"convolution", "custom_call", "dot", "dot_general", "while"})


def line_of(
    graph: OpGraph, ops: Sequence[int], weights: np.ndarray
) -> tuple[np.ndarray, ForwardLine]:
    """The unit of each of the forward operations `ops`, which are in program order and weigh so
    much, and the line of the units."""
    single = _line(graph, {index: unit for unit, index in enumerate(ops)}, weights)
    blocks = block_spans(single.runs, single.operators, single.crossing)
    borders = {place for block in blocks for place in block}
    if len(single.operators) <= _MAX_UNITS:
        borders |= places_between(single.operators, single.crossing)
    units = join(weights, borders)
    line = _line(graph, dict(zip(ops, units.tolist(), strict=True)), weights)
    spans = tuple((int(units[first]), int(units[stop - 1]) + 1) for first, stop in blocks)
    return units, replace(line, blocks=spans)


def join(weights: np.ndarray, borders: Collection[int] = ()) -> np.ndarray:
    """Unit of each operation: when there are many, neighbours are joined into about `_MAX_UNITS`
    units, but none across one of `borders`."""
    if len(weights) <= _MAX_UNITS:
        return np.arange(len(weights))
    # Where a unit ends because of the limit, it and the next one together exceed it: there are
    # fewer than `_MAX_UNITS` such ends, and half as many because of the length. Length is bounded,
    # too, as a long stretch without weight would otherwise be one unit that cannot be cut.
    limit, longest = 2 * weights.sum() / _MAX_UNITS, -(-2 * len(weights) // _MAX_UNITS)
    units = np.zeros(len(weights), dtype=np.int64)
    unit, filled, length = 0, 0.0, 0
    for index, work in enumerate(weights):
        full = filled + work > limit or length >= longest
        if length and (full or index in borders):
            unit, filled, length = unit + 1, 0.0, 0
        units[index] = unit
        filled, length = filled + work, length + 1
    return units


def _line(graph: OpGraph, unit_of: Mapping[int, int], weights: np.ndarray) -> ForwardLine:
    """The forward operations, in program order, with their units."""
    ops, tensors = graph.ops, graph.tensors
    units = np.fromiter(unit_of.values(), dtype=np.int64, count=len(unit_of))
    workers = [index for index in unit_of if ops[index].name in _OPERATORS]
    return ForwardLine(
        np.bincount(units, weights=weights),
        _values(graph, unit_of),
        tuple(unit_of[index] for index in workers),
        tuple(
            (ops[k].name, *(tensors[t].shape for t in (*ops[k].operands, *ops[k].results)))
            for k in workers
        ),
        tuple(ops[index].weighted_flops for index in workers),
    )


def _values(graph: OpGraph, unit_of: Mapping[int, int]) -> list[Value]:
    """What forward units exchange: the values one of them makes and later ones read."""
    values, consumers = [], graph.consumers()
    for index, unit in unit_of.items():
        for result in graph.ops[index].results:
            readers = {unit_of[c] for c in consumers[result] if c in unit_of} - {unit}
            if readers:
                size = graph.tensors[result].size_bytes
                values.append(Value(unit, size, tuple(sorted(readers))))
    return values
