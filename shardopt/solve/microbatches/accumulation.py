"""Which operations may work on the terms of an accumulation instead of on what they add up to.

    %g = dot %x, %h      contracts the batch: each microbatch has a term
    %s = transpose %g    on the terms: as exact, and no larger
    %c = clamp %s        on the sum, behind the loop

Inside of a loop or branch there is nothing behind it, and all that is linear works on terms."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from shardopt.graph.linear_ops import linear_modes
from shardopt.graph.microbatching import Splat
from shardopt.graph.op_graph import Op, OpGraph
from shardopt.solve.microbatches.axis import IDEMPOTENT, Batch, State

# Ops that copy elements, unless they repeat some.
_LAYOUT = frozenset({"reshape", "transpose", "optimization_barrier", "broadcast_in_dim"})
_COMMUTING = IDEMPOTENT | {"add"}
_FLOAT_BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}


def is_layout(graph: OpGraph, op: Op) -> bool:
    """Whether the op only moves elements: worth doing on a partial value only if something that
    shrinks it follows."""
    sizes = {graph.tensors[t].size_bytes for t in (*op.operands, *op.results)}
    return op.name in _LAYOUT and len(sizes) == 1


@dataclass(frozen=True)
class Accumulation:
    """`splats` and `estimated` (values of which every microbatch has its own estimate) grow as the
    walk through the graph goes on."""

    graph: OpGraph
    batch: Batch
    is_region: bool
    splats: Mapping[int, Splat]
    estimated: Set[int]
    outputs: Set[int]

    def keeps_partial(self, op: Op, terms: Mapping[int, State]) -> bool:
        """Whether accumulating the result is as exact as, and no larger than, accumulating the
        terms it is made of.

        Light terms never enter the body, so nothing is gained for them; of a term with other users,
        both the term and the result would be accumulated."""
        if any(state.light for state in terms.values()):
            return False
        if self.is_region and self._is_linear(op, terms):
            return True
        if not self.batch.per_microbatch and any(
            len(self.graph.consumers()[t]) > 1 or t in self.outputs for t in terms
        ):
            return False
        if is_layout(self.graph, op):
            return True
        # Only sums commute with the linear operations below.
        if any(state.reducer != "add" for state in terms.values()):
            return False
        if op.name in ("add", "subtract", "negate"):
            return all(t in terms or self.splats.get(t) == 0 for t in op.operands)
        if op.name == "convert":
            return self._widens(op)
        if op.name in ("multiply", "divide"):
            return self._scales(op, terms)
        is_sum = op.name == "reduce" and op.reducer == "add" and len(op.operands) == 2
        return is_sum and self.splats.get(op.operands[1]) == 0

    def _is_linear(self, op: Op, terms: Mapping[int, State]) -> bool:
        """In a region nothing can wait for the sum: all that is linear works on the terms."""
        reducers = {state.reducer for state in terms.values()}
        if op.name in IDEMPOTENT:
            return reducers == {op.name}
        if op.island is not None:  # a collective: of each value by itself
            return len(reducers) == 1 and reducers <= _COMMUTING and op.reducer in (None, *reducers)
        # Where a microbatch stands for the batch, rows of what is broadcast are made of estimates.
        is_estimate = self.batch.per_microbatch and op.name == "broadcast_in_dim"
        if reducers != {"add"} or is_estimate:
            return False
        zeros = {tensor for tensor, splat in self.splats.items() if splat == 0}
        places = {k for k, tensor in enumerate(op.operands) if tensor in terms}
        return any(
            places <= set(mode) and all(op.operands[k] in zeros for k in set(mode) - places)
            for mode in linear_modes(op, self.graph.tensors, zeros)
        )

    def _scales(self, op: Op, terms: Mapping[int, State]) -> bool:
        """A gradient times a statistic that each microbatch estimates: both must be of the same
        microbatch."""
        first, second = op.operands
        scale = first if op.name == "multiply" and second in terms else second
        return scale in self.estimated and scale not in terms

    def _widens(self, op: Op) -> bool:
        """Accumulating after a widening conversion costs memory but keeps the precision the user
        asked for."""
        before, after = (
            _FLOAT_BITS.get(self.graph.tensors[t].dtype, 0) for t in (op.operands[0], op.results[0])
        )
        return 0 < before < after
