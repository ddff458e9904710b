"""Which layer every operation of a microbatch belongs to, forward and backward alike, from the
graph alone.

Alpa (§5.1, eq. 6) clusters the forward graph before differentiation. We see the whole step, so
first the forward part is found, then clustered by the layer DP, then the rest follows it:

1. *Forward* are the operations every gradient depends on. Gradients need the loss, the loss needs
   the forward pass, and a backward operation of layer k reaches only gradients of layers ≤ k: so
   the intersection of the gradients' ancestors is the forward pass (with the head of the backward
   pass, which belongs to the last layer anyway). Where only early weights are trained it has much
   of the backward pass, too; what leads to the loss or a metric has not.
2. Forward operations are clustered in program order.
3. A backward operation that reads a weight, or makes a term of its gradient, belongs to the layer
   of that use of the weight. Between those, minimum cuts decide (`backward_cuts`). Backward
   dataflow never rises, as the forward never falls.
4. What no gradient needs (losses, metrics) follows its operands.

Operations computed from nothing but constants and the microbatch index belong to no layer
(`SHARED`): every stage makes its own copy. So do masks and the like, which several layers read and
small inputs give."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shardopt.graph.op_graph import SHARED, Op, OpGraph
from shardopt.solve.stages.layers.backward_cuts import (
    BackwardProblem,
    BackwardValue,
    place_backward,
)
from shardopt.solve.stages.layers.dependences import copyable_ops, is_dear, reached
from shardopt.solve.stages.layers.forward_line import ForwardLine
from shardopt.solve.stages.layers.forward_units import line_of
from shardopt.solve.stages.layers.layer_dp import LayerSolution, relaxed_delta
from shardopt.support.errors import UserError

# Not -1, which is known: operations of no layer.
_UNKNOWN = -2
# Below this share of the FLOPs the intersection of ancestors is not a forward pass (there is no
# common loss).
_MIN_FORWARD_SHARE = 0.1
# A backward pass has twice the FLOPs of its forward pass; a smaller share shows only a part of the
# forward pass.
_FORWARD_OF_BOTH = 0.3
# What may stand between the contributions to a gradient and its accumulator.
_SUMMING = frozenset({"add", "convert", "reshape", "transpose"})


@dataclass(frozen=True)
class LayerProblem:
    """The body of a microbatch. `weight_of[t]`: output t accumulates the gradient of what these
    inputs (one weight, and casts or transposes of it) show.

    `free_inputs` (the microbatch index) tie nothing to a layer. `accumulators[t] = a`: output t
    continues input a. `starts`, if there are any, are the operations at which layers begin, but for
    the first layer. `num_layers=None` finds the number, but never fewer than `least_layers`;
    `method` is "dp" or a baseline, "equal-op" or "equal-layer". Operations `behind` a barrier wait
    for the backward pass, although they may read nothing of it.

    Layers have about equal shares of the FLOPs of the forward pass; with `seconds`, those of each
    operation, of the time of forward and backward, where forward operations that are
    `computed_again` count twice."""

    graph: OpGraph
    weight_of: Mapping[int, tuple[int, ...]]
    accumulators: Mapping[int, int]
    free_inputs: frozenset[int]
    num_layers: int | None = None
    least_layers: int = 1
    delta: float = 0.5
    method: str = "dp"
    starts: tuple[int, ...] = ()
    behind: frozenset[int] = frozenset()
    seconds: np.ndarray | None = None
    computed_again: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Layering:
    """`layer[i]` of operation i (or `SHARED`); the forward set; the solution of the DP over the
    forward units."""

    layer: tuple[int, ...]
    is_forward: tuple[bool, ...]
    solution: LayerSolution
    num_layers: int


def assign_layers(problem: LayerProblem) -> Layering:
    """Solve a `LayerProblem`. Raises UserError when `num_layers` cannot be balanced within
    `delta`."""
    return _Assignment(problem).run()


class _Assignment:
    """One run over one problem: the graph's indices and the layers found so far."""

    def __init__(self, problem: LayerProblem) -> None:
        self.problem = problem
        self.graph = problem.graph
        self.producers = problem.graph.producers()
        self.consumers = problem.graph.consumers()
        self.layer = [_UNKNOWN] * len(problem.graph.ops)
        self.shared = copyable_ops(problem.graph, problem.free_inputs)
        self.needed = reached(problem.graph, [*problem.weight_of])
        self.forward = self._forward_ops()
        self.summing = self._summing_ops()
        self.contributions = dict(self._contributions())

    def run(self) -> Layering:
        solution = self._cluster_forward()
        self._share_followers()
        self._assign_backward()
        self._assign_rest()
        return Layering(tuple(self.layer), self.forward, solution, self.num_layers)

    def _forward_ops(self) -> tuple[bool, ...]:
        """Step 1; everything when the gradients have no common part."""
        everything = tuple(not shared for shared in self.shared)
        gradients = [*self.problem.weight_of]
        if not gradients:
            return everything
        full = (1 << len(gradients)) - 1
        common = tuple(
            bits == full and is_member
            for bits, is_member in zip(self.needed, everything, strict=True)
        )
        if self._flops(common) < _MIN_FORWARD_SHARE * self._flops(everything):
            return everything
        shown = reached(self.graph, [t for t in self.graph.outputs if t not in gradients])
        forward = tuple(
            bits != 0 and is_member for bits, is_member in zip(shown, common, strict=True)
        )
        return forward if self._flops(forward) >= _FORWARD_OF_BOTH * self._flops(common) else common

    def _flops(self, chosen: Sequence[bool]) -> float:
        return sum(
            op.weighted_flops for op, inside in zip(self.graph.ops, chosen, strict=True) if inside
        )

    def _summing_ops(self) -> frozenset[int]:
        """Ops that combine with an accumulator, and those that only add up or reshape what is about
        to be combined.

        The gradient of a tied weight is such a sum over several layers, and must not pull them
        together."""
        summing: set[int] = set()
        stack = [
            index
            for output, start in self.problem.accumulators.items()
            if (index := self.producers[output]) >= 0
            and not self.forward[index]
            and self._ends_sum(index, output, start)
        ]
        while stack:
            index = stack.pop()
            summing.add(index)
            for operand in self.graph.ops[index].operands:
                producer = self.producers[operand]
                if (
                    producer >= 0
                    and not self.forward[producer]
                    and not self.shared[producer]
                    and self.graph.ops[producer].name in _SUMMING
                    and len(self.consumers[operand]) == 1
                ):
                    stack.append(producer)
        return frozenset(summing)

    def _ends_sum(self, index: int, output: int, accumulator: int) -> bool:
        """Without a batch the only iteration replaces an accumulator instead of adding to it."""
        op = self.graph.ops[index]
        return accumulator in op.operands or (
            output in self.problem.weight_of and op.name in _SUMMING
        )

    def _contributions(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(tensor that goes into the sum of a gradient, the weight whose gradient it is)."""
        for output, weight in self.problem.weight_of.items():
            stack = [output]
            while stack:
                tensor = stack.pop()
                if self.producers[tensor] in self.summing:
                    stack.extend(self.graph.ops[self.producers[tensor]].operands)
                elif self.producers[tensor] >= 0:
                    yield tensor, weight

    def _cluster_forward(self) -> LayerSolution:
        """Step 2: the layer DP on units of consecutive forward operations."""
        sources = self._sources()
        ops = [
            index for index, inside in enumerate(self.forward) if inside and index not in sources
        ]
        weights = self._weights()[ops]
        if self.problem.starts:
            # Boundaries of a plan file count operations, so none are joined.
            units, solution = np.arange(len(ops)), self._from_starts(weights, ops)
        else:
            units, line = line_of(self.graph, ops, weights)
            solution = self._solve(line)
        unit_of = dict(zip(ops, units.tolist(), strict=True))
        self.num_layers = len(solution.boundaries) - 1
        for index, unit in unit_of.items():
            self.layer[index] = bisect_right(solution.boundaries, unit) - 1
        for index, shared in enumerate(self.shared):
            if shared:
                self.layer[index] = SHARED
        # From the last on, so that the layers of a source's readers are known.
        for index, inputs in reversed(sources.items()):
            readers = {self.layer[c] for c in self._forward_consumers(index)}
            needed, made = (
                sum(self.graph.tensors[t].size_bytes for t in tensors)
                for tensors in (inputs - self.problem.free_inputs, self.graph.ops[index].results)
            )
            copied = SHARED in readers or (len(readers) > 1 and needed <= made)
            self.layer[index] = SHARED if copied else min(readers)
        return solution

    def _weights(self) -> np.ndarray:
        """What layers have about equal shares of, by forward operation: float64 `[operations]`."""
        if self.problem.seconds is None:
            return np.array([op.weighted_flops for op in self.graph.ops], dtype=float)
        weights = np.zeros(len(self.graph.ops))
        home = self._homes()
        for index, seconds in enumerate(self.problem.seconds):
            if home[index] >= 0:
                again = self.forward[index] and index in self.problem.computed_again
                weights[home[index]] += seconds * (1 + again)
        return weights

    def _homes(self) -> list[int]:
        """The forward operation whose layer each operation will about have: of a backward one the
        last whose results it reads, or that reads a weight which it reads or makes a term of the
        gradient of, but none behind those of the backward operations that it reads, as backward
        dataflow never rises; -1 where there is none."""
        home = [-1] * len(self.graph.ops)
        for index, op in enumerate(self.graph.ops):
            if self.shared[index]:
                continue
            if self.forward[index]:
                home[index] = index
                continue
            made_by = [p for t in op.operands if (p := self.producers[t]) >= 0]
            before = [home[p] for p in made_by if not self.forward[p] and home[p] >= 0]
            top = min(before, default=len(home))
            read_inputs = [
                t
                for t in op.operands
                if self.producers[t] < 0 and t not in self.problem.free_inputs
            ]
            weights = [w for r in op.results for w in self.contributions.get(r, ())]
            readers = [
                c for t in (*read_inputs, *weights) for c in self.consumers[t] if self.forward[c]
            ]
            read = [p for p in made_by if self.forward[p]]
            read += [c for c in readers if c <= top] or readers
            home[index] = min(max(read), top) if read else min(top, max(before, default=-1))
        return home

    def _sources(self) -> dict[int, frozenset[int]]:
        """Cheap forward ops that read only inputs (masks, slices of random bits, casts of weights)
        or each other, in program order, and the inputs they come from.

        Their place in program order says nothing: they belong to the first layer that reads them,
        or to none where several do and the inputs are smaller than the result (an attention mask).
        """
        inputs_of: dict[int, frozenset[int]] = {}
        for index, op in enumerate(self.graph.ops):
            light = self.forward[index] and not is_dear(op)
            made_by = [p for t in op.operands if (p := self.producers[t]) >= 0]
            if (
                light
                and all(self.shared[p] or p in inputs_of for p in made_by)
                and self._forward_consumers(index)
            ):
                direct = frozenset(t for t in op.operands if self.producers[t] < 0)
                inputs_of[index] = direct.union(*(inputs_of[p] for p in made_by if p in inputs_of))
        return inputs_of

    def _forward_consumers(self, index: int) -> list[int]:
        return [
            c for r in self.graph.ops[index].results for c in self.consumers[r] if self.forward[c]
        ]

    def _solve(self, line: ForwardLine) -> LayerSolution:
        problem, delta = self.problem, self.problem.delta
        count = problem.num_layers
        if count is None:
            count = max(problem.least_layers, line.best_count(delta))
            delta = relaxed_delta(line.weights, count, delta)
        return line.cut(count, delta, max(0.0, 1 - problem.delta), problem.method)

    def _from_starts(self, weights: np.ndarray, ops: Sequence[int]) -> LayerSolution:
        """The layers that begin at the first forward operations at or behind `starts`."""
        inner = [bisect_left(ops, start) for start in self.problem.starts]
        boundaries = (0, *inner, len(ops))
        if any(low >= high for low, high in pairwise(boundaries)):
            raise UserError(
                "expected a forward operation in every layer, found layers that begin at "
                f"{inner} of {len(ops)}"
            )
        sums = tuple(float(weights[low:high].sum()) for low, high in pairwise(boundaries))
        return LayerSolution(
            boundaries=boundaries,
            cost=0,
            total_bytes=0,
            layer_bytes=(0,) * len(sums),
            layer_weights=sums,
            status="fixed",
        )

    def _share_followers(self) -> None:
        """What only shared values make, for the backward pass or a metric, is shared as well."""
        for index, op in enumerate(self.graph.ops):
            if self.layer[index] == _UNKNOWN and op.operands and not is_dear(op):
                made_by = [self.producers[t] for t in op.operands]
                if all(p >= 0 and self.layer[p] == SHARED for p in made_by):
                    self.layer[index] = SHARED

    def _assign_backward(self) -> None:
        """Step 3: anchors, then the cheapest cuts between them."""
        ops = [
            index
            for index in range(len(self.graph.ops))
            if self.layer[index] == _UNKNOWN and self.needed[index] and index not in self.summing
        ]
        number = {index: k for k, index in enumerate(ops)}
        uses = self._forward_uses()
        top = self.num_layers - 1
        bounds = [self._anchors(self.graph.ops[index], uses) or (0, top) for index in ops]
        values = tuple(self._backward_values(number))
        least, most = tuple(low for low, _ in bounds), tuple(high for _, high in bounds)
        for index, layer in zip(
            ops, place_backward(BackwardProblem(top + 1, least, most, values)), strict=True
        ):
            self.layer[index] = layer

    def _anchors(self, op: Op, uses: Mapping[int, tuple[int, ...]]) -> tuple[int, int] | None:
        """(least, most) layer of an operation that reads a weight or makes a term of its gradient,
        None for others."""
        origin = [self._use_behind(op, r, uses) for r in op.results if r in self.contributions]
        if origin:
            return max(origin), max(origin)
        read = [uses[t] for t in op.operands if t in uses]
        return (
            (max(layers[0] for layers in read), max(layers[-1] for layers in read))
            if read
            else None
        )

    def _backward_values(self, number: Mapping[int, int]) -> Iterator[BackwardValue]:
        """The values that backward operations read, of their own and of the forward pass."""
        for tensor, consumers in enumerate(self.consumers):
            readers = tuple(number[c] for c in consumers if c in number)
            producer, size = self.producers[tensor], self.graph.tensors[tensor].size_bytes
            if not readers or producer < 0:
                continue
            if producer in number:
                yield BackwardValue(size, readers, number[producer])
            elif self.forward[producer] and self.layer[producer] != SHARED:
                home = self.layer[producer]
                spread = max(home, *(self.layer[c] for c in consumers if self.forward[c]), home)
                yield BackwardValue(size, readers, home=home, spread=spread)

    def _forward_reads(self, op: Op) -> list[int]:
        """Layers of the forward operations whose results `op` reads."""
        return [
            self.layer[p] for t in op.operands if (p := self.producers[t]) >= 0 and self.forward[p]
        ]

    def _use_behind(self, op: Op, contribution: int, uses: Mapping[int, tuple[int, ...]]) -> int:
        """The layer of the use of a weight that a contribution to its gradient comes from: where
        the forward reads the weight together with a value that went into the contribution, else the
        first use not before those values."""
        floor = max(self._forward_reads(op), default=0)
        weight = self.contributions[contribution]
        together = [
            self.layer[c]
            for t in op.operands
            for c in self.consumers[t]
            if self.forward[c]
            and t not in weight
            and any(w in self.graph.ops[c].operands for w in weight)
        ]
        return min(
            together or [k for w in weight for k in uses.get(w, ()) if k >= floor], default=floor
        )

    def _forward_uses(self) -> dict[int, tuple[int, ...]]:
        """For each input tensor the layers whose forward operations read it, ascending."""
        uses: dict[int, set[int]] = {}
        for index, inside in enumerate(self.forward):
            if inside:
                for operand in self.graph.ops[index].operands:
                    if self.producers[operand] < 0 and operand not in self.problem.free_inputs:
                        uses.setdefault(operand, set()).add(self.layer[index])
        return {tensor: tuple(sorted(layers)) for tensor, layers in uses.items()}

    def _assign_rest(self) -> None:
        """Step 4 and the sums: after forward operands the latest layer, after backward ones the
        earliest. What runs with the backward pass, without being of it, begins in its first
        layer."""
        backward: set[int] = set()
        for index, op in enumerate(self.graph.ops):
            made_by = [
                p for t in op.operands if (p := self.producers[t]) >= 0 and self.layer[p] >= 0
            ]
            behind = [self.layer[p] for p in made_by if p in backward]
            if self.layer[index] == _UNKNOWN or index in self.summing:
                waits = index in self.problem.behind
                latest = max((self.layer[p] for p in made_by), default=0)
                self.layer[index] = min(behind, default=self.num_layers - 1 if waits else latest)
            elif self.forward[index] or self.shared[index]:
                continue
            if behind or self.needed[index] or index in self.problem.behind:
                backward.add(index)
