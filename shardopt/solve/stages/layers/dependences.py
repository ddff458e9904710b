"""What an operation depends on, and what depends on it: two sweeps over an op graph."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from shardopt.graph.op_graph import Op, OpGraph

_DEAR = frozenset(
    {
        "dot_general",
        "convolution",
        "while",
        "case",
        "rng_bit_generator",
        "rng",
        "sort",
        "scatter",
        "custom_call",
    }
)


def is_dear(op: Op) -> bool:
    """Whether an operation is not worth a copy in every stage."""
    return op.name in _DEAR or op.island is not None


def copyable_ops(graph: OpGraph, free_inputs: frozenset[int]) -> tuple[bool, ...]:
    """Cheap operations whose ancestors are constants and free inputs only."""
    free = set(free_inputs)
    shared = []
    for op in graph.ops:
        shared.append(not is_dear(op) and free.issuperset(op.operands))
        if shared[-1]:
            free.update(op.results)
    return tuple(shared)


def reached(graph: OpGraph, targets: Sequence[int]) -> list[int]:
    """For each operation the set (as bits, in the order of `targets`) of those tensors that depend
    on it."""
    of_tensor = [0] * len(graph.tensors)
    for bit, tensor in enumerate(targets):
        of_tensor[tensor] |= 1 << bit
    of_op = [0] * len(graph.ops)
    for index in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[index]
        bits = reduce(or_, (of_tensor[result] for result in op.results), 0)
        of_op[index] = bits
        for operand in op.operands:
            of_tensor[operand] |= bits
    return of_op
