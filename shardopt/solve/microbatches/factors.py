"""A number that all rows wait for, left out of what they compute and multiplied behind the loop.

    %l = reduce %e, batch                      %l = reduce %e, batch
    %s = sqrt' %l                              %s = sqrt' %l             behind the loop
    %c = multiply %r, broadcast %s       =>    %c = multiply %r, broadcast 1
    %g = dot %x, %c                            %g = multiply (dot %x, %c), broadcast %s

The gradient of a function of one sum over the batch, such as the root of a mean, is that of the sum
times one number, which is there when all rows are. Whatever the rows make of it is proportional to
it, as a backward pass is linear; so it computes with 1, and what it accumulates is multiplied by
the number.

From the number on, an operation belongs to it if it is linear in all that it reads of that. The
first value behind which it is not must be accumulated over the batch by then, or the step is not of
this form: gradients of two such sums that meet in one row, or of each row that are clipped.

A derivative may be infinite, as that of the root at 0 is. Of rows that a mask takes out the
gradient is 0 all the same, not 0 times infinity: zeros that a mask may have left are not multiplied
behind the loop either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from shardopt.graph.linear_ops import linear_modes, plain_zeros
from shardopt.graph.op_graph import Op, OpGraph, Region, Tensor
from shardopt.solve.microbatches.axis import AxisKind, Batch, CouplingError, Factor, TimeAxis
from shardopt.solve.microbatches.time_axis import follow

_ACCUMULATED = (AxisKind.PARTIAL, AxisKind.WHOLE)
# Others overflow, or lose small numbers, where one factor more or less is in them.
_WIDE_RANGE = frozenset({"bf16", "f32", "f64"})
# Sums over windows, and the gradient of maxima over windows: the operand that they are linear in;
# the last one is what they begin with.
_OVER_WINDOWS = {"reduce_window": (0,), "select_and_scatter": (1,)}
# What puts zeros in places of its own, as masks and the gradients of slices, of looked up rows and
# of windows that leave some elements out do.
_MASKS = frozenset(
    {
        "case",
        "concatenate",
        "convolution",
        "dynamic_update_slice",
        "if",
        "pad",
        "reduce_window",
        "scatter",
        "select",
        "select_and_scatter",
    }
)


def find_factor(graph: OpGraph, batch: Batch, error: CouplingError) -> Factor | None:
    """The number that the operation of `error` waits for, if its rows can do without."""
    index = error.regions[0][0] if error.regions else error.op
    axis = follow(graph, batch)
    for tensor in dict.fromkeys(graph.ops[index].operands):
        state = axis.states[tensor]
        if state.kind in _ACCUMULATED and not state.light:
            scalar = _scalar_behind(axis, tensor)
            factor = None if scalar is None else _factor(graph, batch, scalar)
            if factor is not None and index in factor.ops:
                return factor
    return None


def _scalar_behind(axis: TimeAxis, tensor: int) -> int | None:
    """The first single number that `tensor` is proportional to: all that is made of it has it in
    common."""
    graph, found = axis.graph, None
    producers, zeros = graph.producers(), plain_zeros(graph)
    while True:
        if graph.tensors[tensor].elements == 1 and graph.tensors[tensor].is_float:
            found = tensor
        if producers[tensor] < 0:
            return found
        op = graph.ops[producers[tensor]]
        kinds = {t: axis.states[t].kind for t in op.operands}
        sources = {t for t, kind in kinds.items() if kind in _ACCUMULATED}
        if AxisKind.BATCHED in kinds.values() or len(sources) != 1:
            return found
        if not _proportional(op, graph.tensors, sources, zeros):
            return found
        (tensor,) = sources


def _factor(graph: OpGraph, batch: Batch, scalar: int) -> Factor | None:
    """None where rows that lack the factor are read for something else."""
    zeros = plain_zeros(graph)
    kinds = [state.kind for state in _with_one(graph, batch, scalar, zeros).states]
    made = _lacking(graph, scalar, kinds, zeros)
    chosen = _leading_to_rows(graph, made, kinds)
    copies = tuple(k for k in chosen if {kinds[t] for t in made[k]} == {AxisKind.CONST})
    ops = tuple(k for k in chosen if k not in copies)
    consumers = graph.consumers()
    scaled = tuple(
        tensor
        for index in ops
        for tensor in sorted(made[index])
        if tensor in graph.outputs or not set(consumers[tensor]) <= set(chosen)
    )
    if any(kinds[tensor] is not AxisKind.PARTIAL for tensor in scaled):
        return None
    return Factor(scalar, copies, ops, scaled, _masked(graph, chosen).intersection(scaled))


def _with_one(graph: OpGraph, batch: Batch, scalar: int, zeros: Set[int]) -> TimeAxis:
    """The step in which those who are linear in `scalar` read 1 instead: an input without rows."""
    one = len(graph.tensors)
    ops = tuple(
        op.renamed({scalar: one})
        if scalar in op.operands and _proportional(op, graph.tensors, {scalar}, zeros)
        else op
        for op in graph.ops
    )
    tensors, inputs = (*graph.tensors, graph.tensors[scalar]), (*graph.inputs, one)
    return follow(replace(graph, tensors=tensors, ops=ops, inputs=inputs), batch)


def _lacking(
    graph: OpGraph, scalar: int, kinds: Sequence[AxisKind], zeros: Set[int]
) -> dict[int, set[int]]:
    """Of each operation that is linear in what it reads of `scalar`, its results; no further than
    where they are known behind the loop alone."""
    made: dict[int, set[int]] = {}
    lacking = {scalar}
    for index, op in enumerate(graph.ops):
        results = _proportional(op, graph.tensors, lacking.intersection(op.operands), zeros)
        results = {tensor for tensor in results if kinds[tensor] is not AxisKind.WHOLE}
        if results:
            made[index] = results
            lacking |= results
    return made


def _leading_to_rows(
    graph: OpGraph, made: Mapping[int, set[int]], kinds: Sequence[AxisKind]
) -> tuple[int, ...]:
    """Without what is made of the factor alone, such as the loss that is reported."""
    chosen: list[int] = []
    wanted: set[int] = set()
    for index in reversed(list(made)):
        if any(kinds[t] is not AxisKind.CONST or t in wanted for t in made[index]):
            chosen.append(index)
            wanted.update(graph.ops[index].operands)
    return tuple(reversed(chosen))


def _masked(graph: OpGraph, chosen: Sequence[int]) -> frozenset[int]:
    """Where zeros of a mask may be, among what the operations `chosen` make."""
    masked: set[int] = set()
    for index in chosen:
        op = graph.ops[index]
        if _is_mask(op) or not masked.isdisjoint(op.operands):
            masked.update(op.results)
    return frozenset(masked)


def _is_mask(op: Op) -> bool:
    inner = (each for region in op.regions for each in region.graph.ops)
    return op.name in _MASKS or any(map(_is_mask, inner))


# ---- what is proportional ----


def _proportional(
    op: Op, tensors: Sequence[Tensor], lacking: Set[int], zeros: Set[int]
) -> set[int]:
    """The results that are k times as large if all of `lacking` are; none where some depend on them
    in another way, or none on any."""
    places = {k for k, tensor in enumerate(op.operands) if tensor in lacking}
    if not places or op.island is not None:
        return set()
    if op.name == "while":
        return {op.results[k] for k in _in_loop(op, places, zeros)}
    if op.regions:
        return {op.results[k] for k in _in_branches(op, places, zeros)}
    is_linear = any(
        places <= set(mode) and all(op.operands[k] in zeros for k in set(mode) - places)
        for mode in _modes(op, tensors, zeros)
    )
    return set(op.results) if is_linear else set()


def _modes(op: Op, tensors: Sequence[Tensor], zeros: Set[int]) -> tuple[tuple[int, ...], ...]:
    """As of linear operations, and of those that only round what they are given: it is rounded in
    the same way, whatever factor is in it."""
    if op.name in ("optimization_barrier", "reduce_precision"):
        return ((0,),)
    if op.name == "convert":
        source, target = tensors[op.operands[0]], tensors[op.results[0]]
        return ((0,),) if source.is_float and target.dtype in _WIDE_RANGE else ()
    if op.name in _OVER_WINDOWS and op.reducer == "add" and op.operands[-1] in zeros:
        return (_OVER_WINDOWS[op.name],)
    return linear_modes(op, tensors, zeros)


def _in_loop(op: Op, places: Set[int], zeros: Set[int]) -> set[int]:
    """What a loop carries, by position, as a fixpoint: proportional if it enters and is handed on
    so, or is zero instead."""
    condition, body = op.regions
    carried = range(len(op.results))
    lacking, zero = set(places), {k for k in carried if op.operands[k] in zeros} - places
    while True:
        found = _in_region(op, body, lacking, zero, zeros)
        if found is None:
            return set()
        more = {k for k in carried if k in found[0]} - lacking
        fewer = {k for k in zero if k not in found[1]}
        if not more and not fewer:
            break
        lacking |= more
        zero -= fewer
    inside = lacking.intersection(carried)
    enter = all(k in places or op.operands[k] in zeros for k in inside)
    leave = all(k in found[0] or k in found[1] for k in inside)
    is_free = _in_region(op, condition, lacking, zero, zeros) is not None
    return inside if enter and leave and is_free else set()


def _in_branches(op: Op, places: Set[int], zeros: Set[int]) -> set[int]:
    """By position, what some branch yields so, and all others so or as zero."""
    found = [_in_region(op, region, places, set(), zeros) for region in op.regions]
    if 0 in places or None in found:
        return set()
    yielded = set().union(*(each[0] for each in found if each is not None))
    rest = [each[0] | each[1] for each in found if each is not None]
    return yielded if all(yielded <= each for each in rest) else set()


def _in_region(
    op: Op, region: Region, places: Set[int], zero: Set[int], zeros: Set[int]
) -> tuple[set[int], set[int]] | None:
    """The outputs of a region that are proportional to operands at `places`, and those that are
    zero, where those at `zero` and captured ones in `zeros` are; None where something depends on
    them in another way."""
    graph = region.graph
    captured = len(op.operands) - region.direct
    entering = {t: region.operand(t) for t in range(region.arguments + captured)}
    lacking = {t for t, place in entering.items() if place in places}
    known = plain_zeros(
        graph,
        {
            t
            for t, place in entering.items()
            if place in zero or (t >= region.arguments and op.operands[place] in zeros)
        }
        - lacking,
    )
    for inner in graph.ops:
        if lacking.isdisjoint(inner.operands):
            continue
        results = _proportional(inner, graph.tensors, lacking, known)
        if not results:
            return None
        lacking |= results
    outputs = list(enumerate(graph.outputs))
    return {k for k, t in outputs if t in lacking}, {k for k, t in outputs if t in known}
