"""The layer of every backward operation, by a minimum cut for every boundary between layers.

Operations that read a weight, or make a term of its gradient, stay with that weight. Between them
stand operations that could go either way (the tail of a normalisation, sums of residual branches),
and a careless choice sends several tensors over a boundary where one would do. For boundary k the
operations of layers >= k are the source side of a minimum cut whose capacities are bytes, each
value counted once. The least source sides of rising boundaries are nested, because the operations
tied to either side are; so an operation's layer is the number of source sides it is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_SOURCE, _SINK = 0, 1


@dataclass(frozen=True)
class BackwardValue:
    """A tensor that backward operations `readers` read, made by backward operation `producer` or,
    if that is None, by the forward pass in layer `home`, whose readers take it up to layer `spread`
    anyway."""

    bytes: int
    readers: tuple[int, ...]
    producer: int | None = None
    home: int = 0
    spread: int = 0


@dataclass(frozen=True)
class BackwardProblem:
    """Backward operations in program order; operation i may be in layers `least[i]` to
    `most[i]`."""

    num_layers: int
    least: tuple[int, ...]
    most: tuple[int, ...]
    values: tuple[BackwardValue, ...]


def place_backward(problem: BackwardProblem) -> tuple[int, ...]:
    """The layer of every operation: never below that of a reader of its results, with the fewest
    bytes over each boundary. Bounds that contradict this give way upwards: `most` yields to the
    `least` of readers."""
    least, most = _consistent(problem)
    layer = [0] * len(least)
    for boundary in range(1, problem.num_layers):
        for op in _above(problem, least, most, boundary):
            layer[op] += 1
    return tuple(layer)


def _consistent(problem: BackwardProblem) -> tuple[list[int], list[int]]:
    """Bounds tightened along the dataflow, so that any cut between them is possible."""
    least, most = list(problem.least), list(problem.most)
    made = sorted(
        (value.producer, value.readers) for value in problem.values if value.producer is not None
    )
    for producer, readers in reversed(made):
        least[producer] = max([least[producer], *(least[reader] for reader in readers)])
        most[producer] = max(most[producer], least[producer])
    for producer, readers in made:
        for reader in readers:
            most[reader] = max(least[reader], min(most[reader], most[producer]))
    return least, most


def _above(
    problem: BackwardProblem, least: Sequence[int], most: Sequence[int], boundary: int
) -> list[int]:
    """The operations in layers from `boundary` on."""
    free = [op for op in range(len(least)) if least[op] < boundary <= most[op]]
    above = [op for op in range(len(least)) if least[op] >= boundary]
    if not free:
        return above
    from ortools.graph.python import max_flow

    flow = max_flow.SimpleMaxFlow()
    node = {op: number for number, op in enumerate(free, start=2)}
    fixed = dict.fromkeys(above, _SOURCE)
    # More than all values together, so that no minimum cut contains such an arc.
    unlimited = 1 + sum(value.bytes for value in problem.values)
    extra = len(free) + 2
    for value in problem.values:
        ends = {node.get(op, fixed.get(op, _SINK)) for op in value.readers}
        if value.producer is not None:
            start = node.get(value.producer, fixed.get(value.producer, _SINK))
            for end in sorted(ends - {_SOURCE, _SINK, start}):
                # A reader above takes its producer along.
                flow.add_arc_with_capacity(end, start, unlimited)
        else:
            start = _SOURCE if value.home >= boundary else _SINK
        # A forward value from below has to be sent up if a backward operation above reads it; where
        # the forward pass has carried it up already, that costs nothing.
        if start == _SINK and value.producer is None and value.spread < boundary:
            flow.add_arc_with_capacity(extra, _SINK, value.bytes)
            for end in sorted(ends - {_SINK}):
                flow.add_arc_with_capacity(end, extra, unlimited)
            extra += 1
        elif start != _SINK and ends - {_SOURCE}:
            flow.add_arc_with_capacity(start, extra, value.bytes)
            for end in sorted(ends - {_SOURCE}):
                flow.add_arc_with_capacity(extra, end, unlimited)
            extra += 1
    if flow.num_arcs() == 0 or flow.solve(_SOURCE, _SINK) != flow.OPTIMAL:
        return above
    source_side = set(flow.get_source_side_min_cut())
    return above + [op for op in free if node[op] in source_side]
