"""The body of a microbatch as a part of the step: what it accumulates begins before the loop and is summed behind it.

    zeros ─▶ before ─▶ add(before, gradient) ─▶ after ─▶ sum point ─▶ the update
     once              every microbatch                   once

The shard phase reads the same from the staged form (`shardopt.ir.accumulators`): an accumulator may stay an unfinished
sum over the whole loop, so that the collective of a gradient runs once a step and not in every microbatch. A price
that leaves this out counts it for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from shardopt.cost.graph import MARKER, SHARED, FactorRule, Op, OpGraph
from shardopt.solve.sharding.linear import Linear, find_linear


@dataclass(frozen=True)
class Accumulator:
    """Tensors of the body: `before` is given to a microbatch, `after` is what the next one gets. `zero`: the first
    microbatch gets zeros."""

    before: int
    after: int
    zero: bool = True


@dataclass(frozen=True, eq=False)
class StepGraph:
    """`op_layer` belongs to the operations of `graph`; `tied` pairs must end with equal shardings."""

    graph: OpGraph
    op_layer: tuple[int, ...]
    tied: tuple[tuple[int, int], ...]
    _linear: dict[frozenset[int], tuple[Linear, ...]] = field(default_factory=dict, repr=False)

    def linear(self, whole: frozenset[int]) -> tuple[Linear, ...]:
        """For each operation which values may be partial, if those of `whole` may not."""
        if whole not in self._linear:
            self._linear[whole] = find_linear(self.graph, self.tied, whole)
        return self._linear[whole]

    def sent(self, start: int, end: int) -> frozenset[int]:
        """What layers [start, end) give to others or get from them, of all that could otherwise be an unfinished sum;
        what is sent cannot be one."""
        inside = {tensor: [start <= layer < end for layer in layers] for tensor, layers in self._crossing.items()}
        return frozenset(
            t for t, where in inside.items() if not all(where) and (any(where) or SHARED in self._crossing[t])
        )

    @cached_property
    def _crossing(self) -> dict[int, tuple[int, ...]]:
        """The layers that make and read a value, for values of several layers."""
        producers, consumers = self.graph.producers(), self.graph.consumers()
        found = {}
        for op, linear in enumerate(self.linear(frozenset())):
            for tensor in self.graph.ops[op].results if linear.open else ():
                layers = {self.op_layer[k] for k in (producers[tensor], *consumers[tensor])}
                if len(layers) > 1:
                    found[tensor] = tuple(sorted(layers))
        return found


def step_graph(
    body: OpGraph,
    op_layer: Sequence[int],
    accumulators: Sequence[Accumulator],
    num_microbatches: int,
    tied: Sequence[tuple[int, int]] = (),
) -> StepGraph:
    """The operations of `body` once for each microbatch, with a start and a sum point for each accumulator that an
    operation of a layer makes; the others stay inputs and outputs. Tensors keep their numbers. `tied` are pairs of
    tensors of the body.
    """
    producers = body.producers()
    found = [
        each
        for each in dict.fromkeys(accumulators)
        if producers[each.before] < 0 <= producers[each.after] and op_layer[producers[each.after]] != SHARED
    ]
    shapes = [body.tensors[each.before].shape for each in found]
    sums = {each.after: len(body.tensors) + number for number, each in enumerate(found)}
    starts = [
        Op("constant", (), (each.before,), _made(shape), zero=each.zero)
        for each, shape in zip(found, shapes, strict=True)
    ]
    ends = [
        Op(MARKER, (each.after,), (sums[each.after],), _identity(shape))
        for each, shape in zip(found, shapes, strict=True)
    ]
    repeated = [replace(op, repeat=op.repeat * num_microbatches) for op in body.ops]
    given = {each.before for each in found}
    graph = OpGraph(
        (*body.tensors, *(body.tensors[each.after] for each in found)),
        (*starts, *repeated, *ends),
        tuple(tensor for tensor in body.inputs if tensor not in given),
        tuple(sums.get(tensor, tensor) for tensor in body.outputs),
        tuple((start + len(found), stop + len(found)) for start, stop in body.loops),
        body.carried,
    )
    layers = [op_layer[producers[each.after]] for each in found]
    carried = ((each.before, each.after) for each in found)
    return StepGraph(graph, (*layers, *op_layer, *layers), (*carried, *tied))


def reached_layers(step: StepGraph) -> tuple[int, ...]:
    """For each operation the last layer among those it depends on, itself included. In a stage that ends before that
    layer it belongs to the backward."""
    producers = step.graph.producers()
    reached: list[int] = []
    for op, layer in zip(step.graph.ops, step.op_layer, strict=True):
        before = (reached[producer] for t in op.operands if (producer := producers[t]) >= 0)
        reached.append(max(layer, *before, layer))
    return tuple(reached)


def _made(shape: tuple[int, ...]) -> FactorRule:
    return FactorRule(shape, (), (tuple((dim,) for dim in range(len(shape))),))


def _identity(shape: tuple[int, ...]) -> FactorRule:
    dims = tuple((dim,) for dim in range(len(shape)))
    return FactorRule(shape, (dims,), (dims,))
