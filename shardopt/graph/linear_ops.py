"""In which operands an operation is linear, and which operations leave terms of a sum when they are
split: facts about single operations, from what they are alone.

Both the search for values that may stay unreduced (`shardopt.solve.sharding.strategies.linear`) and
the proof that those of a module may (`shardopt.forms.unreduced_proof`) stand on them."""

from __future__ import annotations

from collections.abc import Sequence, Set

from shardopt.graph.op_graph import MARKER, Op, OpGraph, Tensor

# Operations that are linear in operand 0, whatever the others are.
_IN_FIRST = frozenset(
    {
        MARKER,
        "broadcast_in_dim",
        "convert",
        "divide",
        "dynamic_slice",
        "gather",
        "negate",
        "reshape",
        "reverse",
        "slice",
        "transpose",
    }
)
_IN_BOTH = frozenset({"add", "subtract", "dynamic_update_slice"})
# Bilinear: linear in either operand, with the other one whole.
_IN_EITHER = frozenset({"multiply", "dot_general", "convolution"})
# What zeros stay zeros under.
_KEEPS_ZEROS = frozenset(
    {"broadcast_in_dim", "convert", "negate", "reshape", "reverse", "slice", "transpose"}
)


def linear_modes(
    op: Op, tensors: Sequence[Tensor], zeros: Set[int] = frozenset()
) -> tuple[tuple[int, ...], ...]:
    """Sets of operand positions in which `op` is linear together, from what it is alone; `zeros`
    are known zeros."""
    if op.rule is None or len(op.results) != 1 or not _is_exact(op, tensors):
        return ()
    if op.name in _IN_FIRST:
        return ((0,),)
    if op.name in _IN_BOTH:
        return ((0, 1),)
    if op.name in _IN_EITHER:
        return ((0,), (1,))
    if op.name == "concatenate":
        return (tuple(range(len(op.operands))),)
    if op.name == "select":
        return ((1, 2),)
    if (
        op.name == "reduce"
        and op.reducer == "add"
        and len(op.operands) == 2
        and op.operands[1] in zeros
    ):
        return ((0,),)
    if op.name == "pad" and op.operands[1] in zeros:
        return ((0,),)
    # Linear in what it adds to and in what it adds; the places are whole.
    if op.name == "scatter" and op.reducer == "add" and len(op.operands) == 3:
        return ((0, 2),)
    return ()


def _is_exact(op: Op, tensors: Sequence[Tensor]) -> bool:
    """Whether terms give what the sum gives, up to the order of additions. A sum of rounded terms
    does not."""
    if op.name == "convert":
        source, target = tensors[op.operands[0]], tensors[op.results[0]]
        return _is_float(source) and _is_float(target) and target.itemsize >= source.itemsize
    return op.name != "divide" or _is_float(tensors[op.results[0]])


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype.startswith(("f", "bf", "complex"))


def leaves_terms(op: Op, zeros: Set[int]) -> bool:
    """Whether splitting a contracted factor leaves terms of the result. What is not zero to begin
    with would enter the sum once for each device; and the partitioner sums up what a gather finds
    on each device by itself."""
    if op.rule is None or not op.rule.reduction or op.reducer != "add" or len(op.results) != 1:
        return False
    if op.name == "reduce":
        return len(op.operands) == 2 and op.operands[1] in zeros
    if op.name == "scatter":
        return len(op.operands) == 3 and op.operands[0] in zeros
    return op.name in ("dot_general", "convolution")


def plain_zeros(graph: OpGraph, known: Set[int] = frozenset()) -> frozenset[int]:
    """Tensors whose elements are all zero, as far as that is plain; `known` come from outside."""
    zeros = set(known)
    for op in graph.ops:
        if op.zero or (op.name in _KEEPS_ZEROS and op.operands[0] in zeros):
            zeros.update(op.results)
    return frozenset(zeros)
