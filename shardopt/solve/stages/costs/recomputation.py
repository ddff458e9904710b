"""A step whose stages recompute their forward in the backward, as `shardopt-recompute-stages` makes
it.

Barriers are no operations of the graph, so the copies say themselves which gradient they wait
for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardopt.graph.op_graph import SHARED, Op, OpGraph
from shardopt.graph.recomputed_units import RecomputedUnits
from shardopt.solve.stages.body.recomputation import Recomputation, find_recomputations
from shardopt.solve.stages.step_graph import StepGraph, unread


def can_recompute(step: StepGraph) -> bool:
    """Whether the body is straight line code; what loops and branches would cost again is not known
    here."""
    return not any(op.block for op in step.graph.ops[slice(*step.loop)])


def recompute_forward(step: StepGraph, units: RecomputedUnits) -> StepGraph:
    """The step in which every unit is recomputed (`find_recomputations`). Tensors keep their
    numbers. The body has no loops or branches (`can_recompute`), so row i is operation i of it."""
    rewriter = _Rewriter(step)
    for recomputation in find_recomputations(step.body, units):
        rewriter.add(recomputation)
    return rewriter.step_graph()


@dataclass
class _Rewriter:
    """`copies[i]`, each with its layer, stand before operation i; they copy `originals`."""

    step: StepGraph
    copies: dict[int, list[tuple[Op, int]]] = field(default_factory=dict)
    originals: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tensors, self.ops = list(self.step.graph.tensors), list(self.step.graph.ops)

    def add(self, recomputation: Recomputation) -> None:
        step, first = self.step, self.step.loop[0]
        chain = [first + row for row in recomputation.chain]
        self.originals.update(chain)
        copy_of = {
            tensor: self._fresh(tensor) for op in chain for tensor in step.graph.ops[op].results
        }
        self.copies[first + recomputation.readers[0]] = [
            (self._copy(op, copy_of, recomputation.latest), step.op_layer[op]) for op in chain
        ]
        # Shared operations of the chain serve the copies alone: readers have their own.
        made = {tensor: copy_of[tensor] for tensor in recomputation.made}
        for row in recomputation.readers:
            self.ops[first + row] = self.ops[first + row].renamed(made)

    def step_graph(self) -> StepGraph:
        step, ops, layers, originals = self.step, list[Op](), list[int](), list[int]()
        for number, op in enumerate(self.ops):
            for copy, layer in self.copies.get(number, ()):
                ops.append(copy)
                layers.append(layer)
            if number in self.originals:
                originals.append(len(ops))
            ops.append(op)
            layers.append(step.op_layer[number])
        loop = (step.loop[0], step.loop[1] + len(ops) - len(self.ops))
        graph = step.graph
        kept = (*graph.outputs, *(after for _, after in step.carried))
        # Originals that only the backward has read.
        for number in unread(ops, originals, kept):
            layers[number] = SHARED
        return replace(
            step,
            graph=OpGraph(
                tensors=tuple(self.tensors),
                ops=tuple(ops),
                inputs=graph.inputs,
                outputs=graph.outputs,
                loops=(),
                carried=graph.carried,
            ),
            op_layer=tuple(layers),
            loop=loop,
        )

    def _copy(self, op: int, copy_of: Mapping[int, int], gradient: int) -> Op:
        original = self.step.graph.ops[op]
        waits = (*original.waits, gradient) if self.step.op_layer[op] != SHARED else ()
        results = tuple(copy_of[tensor] for tensor in original.results)
        return replace(original.renamed(copy_of), results=results, waits=waits)

    def _fresh(self, tensor: int) -> int:
        self.tensors.append(self.step.graph.tensors[tensor])
        return len(self.tensors) - 1
