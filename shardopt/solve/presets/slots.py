"""The optimizer state of each weight: which of its dimensions are which of the weight's.

    rows' = 0.9 rows + 0.1 mean(g * g over columns)      rows belongs to w, and its one dimension
    w'    = w - g * rsqrt(rows' broadcast) * …           is dimension 0 of w

Moments have the shape of the weight; factored ones (Adafactor, arXiv 1804.04235) lack a dimension.
Either way they are found from what replaces the weight, dimension by dimension through the factors
of the rules, as far back as the batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass

from shardopt.graph.op_graph import Op, OpGraph
from shardopt.mesh.mesh import Sharding

# Of each dimension of a tensor, the dimension of the weight that it is.
_Dims = tuple[int | None, ...]


@dataclass(frozen=True)
class Slot:
    """State of a weight; `dims[d]` is the dimension of the weight that dimension d is."""

    tensor: int
    dims: _Dims

    def dim_of(self, dim: int) -> int | None:
        """Where a dimension of the weight is."""
        return self.dims.index(dim) if dim in self.dims else None

    def like(self, sharding: Sharding) -> Sharding:
        """Split as the weight is, on the dimensions that the two share."""
        return Sharding(tuple(() if dim is None else sharding.dims[dim] for dim in self.dims))


def find_slots(
    graph: OpGraph, after: int, slots: Set[int], factors: Sequence[int | None]
) -> tuple[Slot, ...]:
    """Those of the weight that the value `after` replaces, among the inputs `slots`. `factors` are
    those that carry the batch: what has one is no part of the update."""
    producers, shape = graph.producers(), graph.tensors[after].shape
    dims_of: dict[int, _Dims] = {after: tuple(range(len(shape)))}
    pending = deque([after])
    while pending:
        tensor = pending.popleft()
        producer = producers[tensor]
        if producer < 0 or factors[producer] is not None:
            continue
        op = graph.ops[producer]
        for operand, dims in _operand_dims(op, op.results.index(tensor), dims_of[tensor]):
            if operand not in dims_of and any(dim is not None for dim in dims):
                dims_of[operand] = dims
                pending.append(operand)
    return tuple(Slot(tensor, dims_of[tensor]) for tensor in sorted(slots & dims_of.keys()))


def _operand_dims(op: Op, result: int, dims: _Dims) -> list[tuple[int, _Dims]]:
    """Each operand with its dimensions, given those of a result: equal where their leading factors
    are."""
    if op.rule is None:
        return []
    led = {
        leading_factor(factors, op.rule.sizes): dim
        for factors, dim in zip(op.rule.results[result], dims, strict=True)
    }
    led.pop(None, None)
    return [
        (operand, tuple(led.get(leading_factor(factors, op.rule.sizes)) for factors in mapping))
        for operand, mapping in zip(op.operands, op.rule.operands, strict=False)
    ]


def leading_factor(factors: tuple[int, ...], sizes: tuple[int, ...]) -> int | None:
    """The major-most factor of a dimension that has more than one element."""
    return next((factor for factor in factors if sizes[factor] > 1), None)
