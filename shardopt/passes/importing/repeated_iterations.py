"""Iterations that compute again what another loop has computed, kept apart from it.

    %h0 = tanh %x0        (forward loop)          %h0 = tanh %x0
    %h1 = tanh %x1                                %h1 = tanh %x1
    …                                       =>    …
    %k1 = tanh %x1        (backward loop)         %b:2 = optimization_barrier %x1, %g
    %d1 = multiply %g, %k1                        %k1 = tanh %b#0
                                                  %d1 = multiply %b#1, %k1

In a scan, `jax.checkpoint(…, prevent_cse=False)` saves memory without a barrier, because no
compiler looks for equal values in two loops. Once they are written out it would, and keep all that
was to be computed again. A barrier at the head of such an iteration says what the loops said: it
takes what is saved and the gradient that arrives, as that of `jax.checkpoint` does."""

from __future__ import annotations

from collections.abc import Sequence, Set
from math import prod

from jaxlib.mlir import ir

from shardopt.extract.op_graph import reads
from shardopt.extract.repeated_ops import equal_ops
from shardopt.ir.loops import Iteration, take_iterations
from shardopt.ir.rewriting import barrier, defining, replace_reads, shape_of

# These only say where elements lie: equal ones in two loops save nothing.
_VIEWS = frozenset(
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "dynamic_slice", "reshape", "slice", "transpose")
)
# No reason to think that a program computes something again.
_NO_WORK = _VIEWS | {"stablehlo.concatenate", "stablehlo.convert"}


def separate_repeats(block: ir.Block) -> int:
    """Put a barrier before each iteration of written-out loops in `block` that repeats what another
    loop computes from arguments; how many there are. Forgets which iterations there were."""
    ops = [op.operation for op in block.operations]
    iterations = take_iterations(ops)
    if not any(iterations):
        return 0
    varying = _varying(ops)
    position = {op: number for number, op in enumerate(ops)}
    repeated, units = set[ir.Value](), dict[Iteration, None]()
    for op, first in equal_ops(ops).items():
        unit = _unit(iterations[position[op]], iterations[position[first]])
        if varying.isdisjoint(op.results):
            continue
        repeated.update(op.results)
        if unit and op.name not in _NO_WORK and any(map(_is_array, op.results)):
            units[unit] = None
    for unit in units:
        _separate(_span(unit, iterations, ops), varying, repeated)
    return len(units)


def _varying(ops: Sequence[ir.Operation]) -> set[ir.Value]:
    """The results that depend on more than constants."""
    varying = set[ir.Value]()
    for op in ops:
        if any(defining(value) is None or value in varying for value in reads(op)):
            varying.update(op.results)
    return varying


def _unit(iteration: Iteration, other: Iteration) -> Iteration:
    """The outermost iteration around the first that is of a loop that the second is not in; empty
    where one loop, or none, holds both."""
    for depth, (here, there) in enumerate(zip(iteration, other, strict=False)):
        if here != there:
            return iteration[: depth + 1] if here[0] != there[0] else ()
    return ()


def _span(
    unit: Iteration, iterations: Sequence[Iteration], ops: Sequence[ir.Operation]
) -> Sequence[ir.Operation]:
    """All operations of an iteration, with those that were made while it was written out."""
    inside = [k for k, each in enumerate(iterations) if each[: len(unit)] == unit]
    return ops[inside[0] : inside[-1] + 1]


def _separate(ops: Sequence[ir.Operation], varying: Set[ir.Value], repeated: Set[ir.Value]) -> None:
    """Put a barrier before an iteration of the operations `ops`."""
    views = _views_of_arguments(ops)
    inner = [op for op in ops if op not in views]
    made = {value for op in inner for value in op.results}
    entering = dict.fromkeys(
        value for op in inner for value in reads(op) if value not in made and _is_tensor(value)
    )
    passed = dict.fromkeys(value for value in entering if value in varying and not _is_input(value))
    passed.update(_merged_otherwise(inner, repeated, passed.keys(), entering.keys()))
    for op in views:  # what the barrier takes stands before it
        op.move_before(inner[0])
    behind = barrier(list(passed), inner[0].location, ir.InsertionPoint(inner[0]))
    replaced = dict(zip(passed, behind.results, strict=True))
    for op in inner:
        replace_reads(op, replaced)


def _views_of_arguments(ops: Sequence[ir.Operation]) -> dict[ir.Operation, None]:
    """Constants, and views of arguments, such as the weights of one layer: nobody saves them."""
    views = dict[ir.Operation, None]()
    for op in ops:
        if (op.name in _VIEWS or not len(op.operands)) and not len(op.regions):
            views.update(dict.fromkeys([op] if all(map(_is_input, op.operands)) else []))
    return views


def _is_input(value: ir.Value) -> bool:
    """Whether a value is a view of arguments and constants."""
    pending = [value]
    while pending:
        maker = defining(pending.pop())
        if maker is None or not len(maker.operands):
            continue
        if maker.name not in _VIEWS:
            return False
        pending += maker.operands
    return True


def _merged_otherwise(
    ops: Sequence[ir.Operation],
    repeated: Set[ir.Value],
    passed: Set[ir.Value],
    entering: Set[ir.Value],
) -> dict[ir.Value, None]:
    """What those that make `repeated` values read of arguments, and would be merged with their
    originals though `passed` values come out of a barrier: a weight that is converted, say."""
    apart, more = set(passed), dict[ir.Value, None]()
    for op in ops:
        operands = reads(op)
        if not repeated.isdisjoint(op.results) and not apart.intersection(operands):
            taken = [v for v in operands if v in entering and not _is_constant(v)]
            more.update(dict.fromkeys(taken))
            apart.update(taken)
        if apart.intersection(operands):
            apart.update(op.results)
    return more


def _is_constant(value: ir.Value) -> bool:
    maker = defining(value)
    return maker is not None and not len(maker.operands)


def _is_array(value: ir.Value) -> bool:
    """Whether it takes memory worth speaking of: indices that two loops compute alike, and other
    scalars, do not."""
    return _is_tensor(value) and prod(shape_of(value)) > 1


def _is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType)
