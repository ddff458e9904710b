"""Lower bounds of the seconds of layers, found without solving a stage.

1. The roofline: every operation runs on as many devices as its rule and shapes can use at all, and
   nothing is communicated.
2. The sharding problem of one layer, *relaxed* so that no stage around the layer makes it cheaper:

   * Values of other layers and of shared operations arrive in the sharding that the reader wants.
   * Operations of a fragment share the steps of the ways by which a value comes to them. In the
     problem of a stage each of them pays for itself, and then shares what it can.
   * Values that leave the layer may stay unreduced. So may all that can stay unreduced when the
     whole step lies on one mesh.
   * Inputs cost nothing.

   A part of its operations is a bound, too, with the roofline of the others. What runs forward
   whatever the stage recomputes and wherever it ends is a small problem, one for all such stages.
   Of most meshes that reach over several hosts it says enough.

A stage costs at least the sum of its layers' bounds: a sharding of the stage contains a solution of
each relaxed layer, and what joins layers only adds to the cost. Equal blocks within a layer are
tied, as they are in the cost of a stage."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain

import numpy as np

from shardopt.graph.offloading import is_worth_a_message
from shardopt.graph.op_graph import SHARED, FactorRule, Op, OpGraph
from shardopt.hardware.cluster import Cluster
from shardopt.mesh.mesh import Mesh
from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.sharing.price_splitting import bound_alone
from shardopt.solve.sharding.intra_op.lifetimes import Lifetimes
from shardopt.solve.sharding.strategies.linear import REDUCED, Linear
from shardopt.solve.sharding.strategies.strategies import LeastCompute
from shardopt.solve.sharding.strategies.tables import StrategyTables
from shardopt.solve.stages.costs.class_problem import WORK, ClassProblem
from shardopt.solve.stages.costs.classes import Classes, PartView, find_classes
from shardopt.solve.stages.costs.stage_part import StagePart, cut_part
from shardopt.solve.stages.step_graph import StepGraph

# A bound need not be as close as a cost: two percent more or less decide about few stages.
GAP = 0.005


@dataclass(frozen=True, eq=False)
class RelaxedLayer:
    """One layer as part of any stage, or some of its operations. `resident` are the tensors that it
    holds all step, in one sharding for all readers."""

    part: StagePart
    view: PartView
    is_whole: bool = True
    resident: frozenset[int] = frozenset()

    @cached_property
    def key(self) -> str:
        """The hash of all that the bound depends on."""
        view = self.view
        loose = (
            f"{self.part.key}{view.linear}{view.accesses}{sorted(view.free)}{sorted(view.unpaid)}"
            f"{sorted(self.resident)}"
        )
        return sha256(loose.encode()).hexdigest()

    @cached_property
    def classes(self) -> Classes:
        return find_classes(self.part, self.view)

    def seconds(self, tables: StrategyTables, byte_seconds: float = 0.0) -> float:
        """What the layer adds at least to the seconds of a step on any stage with this mesh; inf if
        nothing can run it there. With `byte_seconds` more for every byte that a device holds of
        what is resident."""
        held = [(tensor, 1) for tensor in sorted(self.resident)]
        sharing = ClassProblem(self.classes, tables).sharing(held, byte_seconds)
        return bound_alone(sharing, SearchLimits(gap_tolerance=GAP, work=WORK), tables.store)

    def forward_ops(self) -> frozenset[int]:
        """The operations of the step that the layer runs forward."""
        part = self.part
        return frozenset(
            source
            for op, source in zip(part.graph.ops, part.source_ops, strict=True)
            if part.kinds[op.group] == "forward"
        )

    def alone(self, ops: Set[int]) -> RelaxedLayer | None:
        """Some operations of the step, with only each other; None where that is no layer by itself.

        How often their values go to memory depends on what is fused with the others; here they
        never do. So equal operations are equal whatever stands around them."""
        part, view = self.part, self.view
        chosen = [node for node, op in enumerate(part.source_ops) if op in ops]
        if part.graph.loops or not chosen:
            return None
        rows = [part.graph.ops[node] for node in chosen]
        number: dict[int, int] = {}
        for op in rows:
            for tensor in (*op.operands, *op.results):
                number.setdefault(tensor, len(number))
        made = {result for op in rows for result in op.results}
        inputs = tuple(number[tensor] for tensor in number if tensor not in made)
        graph = OpGraph(
            tensors=tuple(part.graph.tensors[tensor] for tensor in number),
            ops=tuple(_renumbered(op, number) for op in rows),
            inputs=inputs,
            outputs=(),
            carried=frozenset(number[t] for t in part.graph.carried if t in number),
        )
        of_others = {number[t] for t in number if t not in made and t not in part.graph.inputs}
        # What others make may be unreduced, which nothing here says: it is tied to nothing.
        own = {t for t, new in number.items() if new not in of_others}
        tied = tuple((number[a], number[b]) for a, b in part.tied if a in own and b in own)
        unpaid = {index for index, node in enumerate(chosen) if node in view.unpaid}
        return RelaxedLayer(
            StagePart(
                graph=graph,
                kinds=("forward",),
                source_ops=tuple(part.source_ops[node] for node in chosen),
                source_tensors=tuple(part.source_tensors[tensor] for tensor in number),
                tied=tied,
                sent=frozenset(),
                loop=(0, len(rows)),
                arrivals={},
                literals=frozenset(),
            ),
            PartView(
                tuple(view.linear[node] for node in chosen),
                tuple(
                    replace(view.accesses[node], counts=(0,) * len(view.accesses[node].counts))
                    for node in chosen
                ),
                frozenset(number[t] for t in view.free if t in number) | of_others,
                frozenset(unpaid | set(range(len(rows), len(rows) + len(inputs)))),
            ),
            is_whole=False,
        )


def _renumbered(op: Op, number: Mapping[int, int]) -> Op:
    operands, results = (
        tuple(number[tensor] for tensor in each) for each in (op.operands, op.results)
    )
    return replace(op, operands=operands, results=results, group=0, waits=())


def relaxed_layer(
    step: StepGraph, layer: int, last: bool, alike: MutableMapping[str, StagePart]
) -> RelaxedLayer:
    """Layer `layer` of a step in a stage before the last, or in the last one, where forward and
    backward are one fragment, in which more is fused. `alike` has the parts known so far by their
    content: what is one kernel is found once for all that are equal."""
    # In any stage before the last, what depends on the last layer is backward; a stage that ends
    # with the last layer has none behind it.
    part = cut_part(step.apart, layer, layer + 1, step.num_layers - (not last))
    equal = alike.setdefault(part.key, part)
    linear = tuple(step.linear[op] for op in part.source_ops)
    shared = [node for node, op in enumerate(part.source_ops) if step.op_layer[op] == SHARED]
    made = {result for node in shared for result in part.graph.ops[node].results}
    inputs = range(len(part.graph.ops), len(part.graph.ops) + len(part.graph.inputs))
    passing = part.sent | part.arrivals.keys() | made
    accesses = tuple(
        replace(
            each,
            counts=tuple(
                0 if tensor in passing else count
                for tensor, count in zip((*op.operands, *op.results), each.counts, strict=True)
            ),
        )
        for op, each in zip(part.graph.ops, equal.kernels.accesses, strict=True)
    )
    free = equal.free | made | part.arrivals.keys()
    view = PartView(linear, accesses, free, frozenset((*shared, *inputs)))
    # Not copies that fragments make of shared values.
    lasting = {*part.graph.inputs, *chain.from_iterable(part.tied)} - free
    resident = {t for t in lasting if step.resident.get(part.source_tensors[t]) == layer}
    return RelaxedLayer(part, view, resident=frozenset(resident))


def common_forward(layers: Sequence[tuple[StepGraph, RelaxedLayer]]) -> RelaxedLayer | None:
    """What a layer runs forward in stages that recompute differently, or end with it or behind it,
    each with the step that it is a layer of: what all of them run, and allow what any of them does.
    Originals have equal results in all steps. None where that is no layer by itself."""
    ops_of = [_forward_results(*each) for each in layers]
    common = frozenset.intersection(*map(frozenset, ops_of))
    alone = layers[0][1].alone({ops_of[0][results] for results in common})
    if alone is None:
        return None
    free, unpaid, linear = set[int](), set[tuple[int, ...]](), dict[tuple[int, ...], Linear]()
    for (step, layer), ops in zip(layers, ops_of, strict=True):
        free.update(layer.part.source_tensors[tensor] for tensor in layer.view.free)
        unpaid.update(
            step.graph.ops[op].results
            for node, op in enumerate(layer.part.source_ops)
            if node in layer.view.unpaid
        )
        for results in common:
            allowed = step.linear[ops[results]]
            linear[results] = allowed.or_as(linear.get(results, REDUCED))
    part, view = alone.part, alone.view
    made = [layers[0][0].graph.ops[op].results for op in part.source_ops]
    view = replace(
        view,
        linear=tuple(linear[results] for results in made),
        free=view.free | {t for t, source in enumerate(part.source_tensors) if source in free},
        unpaid=view.unpaid | {node for node, results in enumerate(made) if results in unpaid},
    )
    return replace(alone, view=view)


def _forward_results(step: StepGraph, layer: RelaxedLayer) -> dict[tuple[int, ...], int]:
    """The operations of `step` that a layer of it runs forward, by their results."""
    ops = sorted(layer.forward_ops())
    return {step.graph.ops[op].results: op for op in ops if step.graph.ops[op].results}


class Rooflines:
    """Seconds of the layers of a step if nothing were ever communicated: of all their operations,
    and of those that are not among `forward`."""

    def __init__(self, step: StepGraph, cluster: Cluster, forward: Set[int] = frozenset()) -> None:
        graph, number = step.graph, dict[tuple[object, ...], int]()
        self._kinds: list[LeastCompute] = []
        rules: dict[FactorRule | None, int] = {}
        of_rule = {
            id(rule): rules.setdefault(rule, len(rules))
            for rule in {id(op.rule): op.rule for op in graph.ops}.values()
        }
        rows = []
        for index, (op, layer) in enumerate(zip(graph.ops, step.op_layer, strict=True)):
            # Whether and how often shared operations are copied depends on the stages.
            if layer == SHARED:
                continue
            operands, results = (
                tuple(graph.tensors[t] for t in some) for some in (op.operands, op.results)
            )
            key = (
                op.name,
                of_rule[id(op.rule)],
                op.windows,
                op.reducer,
                op.attention,
                op.weighted_flops,
                operands,
                results,
            )
            kind = number.setdefault(key, len(number))
            if kind == len(self._kinds):
                self._kinds.append(LeastCompute(op, operands, results, cluster))
            rows.append((kind, layer, op.repeat, op.repeat * (index not in forward)))
        table = np.array(rows, dtype=np.int64).reshape(-1, 4)
        # How often operations of a kind run in each layer.
        self._executions = np.zeros((2, len(number), step.num_layers))
        for executions, repeats in zip(self._executions, table[:, 2:].T, strict=True):
            np.add.at(executions, (table[:, 0], table[:, 1]), repeats)

    def seconds(self, mesh: Mesh) -> np.ndarray:
        """`[2, layers]`, of all microbatches of a step."""
        each = [kind.seconds(mesh) for kind in self._kinds]
        return np.array(each) @ self._executions


def kept_bytes(part: StagePart) -> tuple[int, int, int]:
    """Bytes of whole tensors that a part keeps for its backward: of what its forward makes, apart
    from what leaves it, of what other stages make, and of what among the first may rest on
    hosts."""
    graph = part.graph
    execution = part.kernels.execution
    aliases = {b: a for a, b in part.tied}
    order, inputs = execution.order, graph.inputs
    # What a second microbatch in flight adds is what the forward keeps for the backward.
    lives = Lifetimes(graph, execution, order, inputs, aliases, part.residency(2))
    kept = {live.tensor for live in lives.of_further()}
    made, entering = (
        [graph.tensors[tensor].size_bytes for tensor in some]
        for some in (kept - part.sent - part.arrivals.keys(), kept & part.arrivals.keys())
    )
    return sum(made), sum(entering), sum(filter(is_worth_a_message, made))
