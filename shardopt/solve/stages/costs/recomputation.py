"""A step whose stages recompute their forward in the backward, as
`shardopt.passes.stages.recomputation` does.

By *units*: a layer each, or all layers of a stage. The backward of a unit are its operations that
depend on later units. What they read of the unit's forward is recomputed from what enters the
unit, right before it is needed: the copies wait for a gradient."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardopt.graph.op_graph import SHARED, Op, OpGraph
from shardopt.solve.stages.step_graph import StepGraph

# Its results differ from run to run.
_NEVER_AGAIN = "rng"


def can_recompute(step: StepGraph) -> bool:
    """Whether the body is straight line code; what loops and branches would cost again is not known
    here."""
    return not any(op.block for op in step.graph.ops[slice(*step.loop)])


def recompute_forward(step: StepGraph, unit_of_layer: Mapping[int, int]) -> StepGraph:
    """The step in which every unit is recomputed. `unit_of_layer[k]` is the unit of layer k,
    rising with k; layers that are missing keep what they make. Tensors keep their numbers."""
    body = _Body(step, unit_of_layer)
    for unit in sorted(body.units):
        body.repeat(unit)
    return body.step_graph()


@dataclass
class _Unit:
    """The operations of a unit in program order: `backward` are those that depend on layers behind
    `last_layer`."""

    last_layer: int
    forward: dict[int, None] = field(default_factory=dict)
    backward: dict[int, None] = field(default_factory=dict)


class _Body:
    def __init__(self, step: StepGraph, unit_of_layer: Mapping[int, int]) -> None:
        self.step = step
        self.units = {unit_of_layer[layer]: _Unit(layer) for layer in sorted(unit_of_layer)}
        for op in range(*step.loop):
            unit = self.units.get(unit_of_layer.get(step.op_layer[op], SHARED))
            if unit is not None:
                (unit.backward if step.reached[op] > unit.last_layer else unit.forward)[op] = None
        self.kept = {
            tensor
            for number, unit in self.units.items()
            for tensor in self._entering(self._chain(number, unit.backward, ()))
        }
        self.tensors = list(step.graph.tensors)
        self.ops = list(step.graph.ops)
        self.copies: dict[int, list[tuple[Op, int]]] = {}  # before operation: (copy, its layer)

    def repeat(self, number: int) -> None:
        """Copy what the backward of a unit needs of its forward."""
        step, readers = self.step, list(self.units[number].backward)
        ready = max(self._outside(self._chain(number, readers, self.kept)), default=-1)
        # In a backward pass that begins before the forward is complete, the first readers keep the
        # originals.
        readers = [op for op in readers if op > ready]
        chain = self._chain(number, readers, self.kept)
        made = {
            tensor
            for op in chain
            if step.op_layer[op] != SHARED
            for tensor in step.graph.ops[op].results
        }
        readers = [op for op in readers if made.intersection(step.graph.ops[op].operands)]
        if not readers:
            return
        recomputed = {
            tensor: self._fresh(tensor) for op in chain for tensor in step.graph.ops[op].results
        }
        gradient = self._latest(readers[0])
        self.copies[readers[0]] = [
            (self._copy(op, recomputed, gradient), step.op_layer[op]) for op in chain
        ]
        for op in readers:
            self.ops[op] = self.ops[op].renamed({tensor: recomputed[tensor] for tensor in made})

    def _latest(self, op: int) -> int:
        """Of the tensors that an operation waits for, the one that depends on the last layer."""
        step = self.step

        def depth(tensor: int) -> int:
            maker = step.producers[tensor]
            return SHARED if maker < 0 else max(step.reached[maker], step.op_layer[maker])

        return max((*step.graph.ops[op].operands, *step.graph.ops[op].waits), key=depth)

    def _copy(self, op: int, recomputed: Mapping[int, int], gradient: int) -> Op:
        original = self.step.graph.ops[op]
        waits = (*original.waits, gradient) if self.step.op_layer[op] != SHARED else ()
        results = tuple(recomputed[tensor] for tensor in original.results)
        return replace(original.renamed(recomputed), results=results, waits=waits)

    def step_graph(self) -> StepGraph:
        step, ops, layers = self.step, list[Op](), list[int]()
        for number, op in enumerate(self.ops):
            for copy, layer in self.copies.get(number, ()):
                ops.append(copy)
                layers.append(layer)
            ops.append(op)
            layers.append(step.op_layer[number])
        added = len(ops) - len(self.ops)
        graph = step.graph
        return replace(
            step,
            graph=OpGraph(
                tuple(self.tensors), tuple(ops), graph.inputs, graph.outputs, (), graph.carried
            ),
            op_layer=tuple(layers),
            loop=(step.loop[0], step.loop[1] + added),
        )

    def _fresh(self, tensor: int) -> int:
        self.tensors.append(self.step.graph.tensors[tensor])
        return len(self.tensors) - 1

    def _chain(self, number: int, readers: Iterable[int], kept: Container[int]) -> list[int]:
        """The forward operations of a unit that `readers` need recomputed if `kept` are there, in
        program order.

        With them come the shared operations they read that stand behind the first reader, where
        copies stand."""
        step, unit, readers = self.step, self.units[number], tuple(readers)
        first = min(readers, default=0)
        chain: dict[int, None] = {}
        operands = (tensor for op in readers for tensor in step.graph.ops[op].operands)
        stack = [tensor for tensor in operands if step.producers[tensor] in unit.forward]
        while stack:
            tensor = stack.pop()
            op = step.producers[tensor]
            if op < 0 or op in chain or tensor in kept or step.graph.ops[op].name == _NEVER_AGAIN:
                continue
            is_late = step.op_layer[op] == SHARED and step.in_body(op) and op > first
            if op in unit.forward or is_late:
                chain[op] = None
                stack += step.graph.ops[op].operands
        return sorted(chain)

    def _outside(self, chain: Sequence[int]) -> list[int]:
        """The operations of the body whose results copies of `chain` read, apart from `chain`
        itself."""
        inside, step = set(chain), self.step
        makers = dict.fromkeys(
            step.producers[tensor] for op in chain for tensor in step.graph.ops[op].operands
        )
        return [op for op in makers if op not in inside and step.in_body(op)]

    def _entering(self, chain: Sequence[int]) -> list[int]:
        """The values of `_outside` that belong to a layer: they are kept, or come from another
        stage."""
        outside = {op for op in self._outside(chain) if self.step.op_layer[op] != SHARED}
        read = dict.fromkeys(tensor for op in chain for tensor in self.step.graph.ops[op].operands)
        return [tensor for tensor in read if self.step.producers[tensor] in outside]
