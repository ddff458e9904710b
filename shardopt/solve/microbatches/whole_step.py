"""A step without batch dimension as a loop of one iteration, with the updates of its state behind
the loop.

Where the batch tells nothing, the state does. A result is an updated state if it comes from an
argument of the same size through operations that keep that size; where such a chain ends at an
operation that mixes elements (a product, a sum, a scatter) stands a term of a gradient, and the
gradient is what adds up such terms alone. The body is what gradients and all other results need.
The rest, which nobody but updated states reads, stands behind the loop, as in a step that is cut
into microbatches: so layers are found from the body, and updates follow their parameters."""

from __future__ import annotations

from collections.abc import Iterator, Set

from shardopt.graph.microbatching import Accumulator, BodyOp, TimePlan, View
from shardopt.graph.op_graph import OpGraph
from shardopt.solve.microbatches.time_axis import HEAVY

# Their results have elements from everywhere in the operands, of whatever size these are.
_MIXING = HEAVY | {
    "fft",
    "gather",
    "reduce",
    "reduce_window",
    "scatter",
    "select_and_scatter",
    "sort",
    "triangular_solve",
}
# What makes a gradient of its terms.
_SUMMING = frozenset({"add", "convert", "reshape", "transpose"})
# Nothing of the model is in these.
_MADE = frozenset({"broadcast_in_dim", "constant", "iota"})


def plan_single(graph: OpGraph) -> TimePlan:
    """The plan of one iteration; its body is the whole step where no state is found."""
    body = _ancestors(graph, set(_roots(graph)))
    if not body:
        body = set(range(len(graph.ops)))
    epilogue = _epilogue(graph, body)
    ops = tuple(
        BodyOp(
            k, None, tuple(map(View, graph.ops[k].operands)), tuple(map(View, graph.ops[k].results))
        )
        for k in sorted(body)
    )
    made = dict.fromkeys(t for k in sorted(body) for t in graph.ops[k].results)
    epilogue_results = {t for k in epilogue for t in graph.ops[k].results}
    read_after = {t for k in epilogue for t in graph.ops[k].operands} | set(graph.outputs)
    read = {t for k in body for t in graph.ops[k].operands}
    captures = tuple(t for t in graph.inputs if t in read)
    # What the epilogue recomputes for itself is not handed over.
    accumulators = tuple(
        Accumulator(View(t)) for t in made if t in read_after and t not in epilogue_results
    )
    return TimePlan(
        num_microbatches=1,
        prologue=(),
        body=ops,
        epilogue=epilogue,
        captures=captures,
        slices=(),
        accumulators=accumulators,
    )


def _roots(graph: OpGraph) -> Iterator[int]:
    """The gradients, and the results that are no updated state."""
    producers = graph.producers()
    for output in graph.outputs:
        gradients, from_state = _origins(graph, producers, output)
        yield from gradients if from_state else (output,)


def _origins(
    graph: OpGraph, producers: tuple[int, ...], output: int
) -> tuple[tuple[int, ...], bool]:
    """The gradients in the chains of equal size that lead to a result, and whether an argument is
    in one."""
    size = graph.tensors[output].elements
    chain = {output: None}
    terms: set[int] = set()
    stack, from_state = [output], False
    while stack:
        tensor = stack.pop()
        op = graph.ops[producers[tensor]] if producers[tensor] >= 0 else None
        if op is None:
            from_state = True
            continue
        same = (
            [t for t in op.operands if graph.tensors[t].elements == size]
            if op.name not in _MIXING
            else []
        )
        if not same and op.name not in _MADE:
            terms.add(tensor)
        stack += [t for t in same if t not in chain]
        chain.update(dict.fromkeys(same))
    parts: set[int] = set()
    made: set[int] = set()  # such as the zeros that an accumulation begins with
    for tensor in sorted(chain, key=lambda t: producers[t]):
        op = graph.ops[producers[tensor]]
        if producers[tensor] >= 0 and op.name in _MADE:
            made.add(tensor)
        added = set(op.operands) - made
        if producers[tensor] >= 0 and op.name in _SUMMING and added and terms >= added:
            terms.add(tensor)
            parts.update(added)
    return tuple(sorted(terms - parts)), from_state


def _ancestors(graph: OpGraph, tensors: set[int]) -> set[int]:
    """The operations that make the tensors, and what those need."""
    ancestors: set[int] = set()
    needed = set(tensors)
    for index in range(len(graph.ops) - 1, -1, -1):
        if not needed.isdisjoint(graph.ops[index].results):
            ancestors.add(index)
            needed.update(graph.ops[index].operands)
    return ancestors


def _epilogue(graph: OpGraph, body: Set[int]) -> tuple[int, ...]:
    """What is not in the body, and what is in it but made of constants only: that is recomputed."""
    constant: set[int] = set()
    for op in graph.ops:
        if constant.issuperset(op.operands) and op.name not in _MIXING and op.rule is not None:
            constant.update(op.results)
    indices: list[int] = []
    read: set[int] = set()
    for index in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[index]
        if index not in body or (
            not read.isdisjoint(op.results) and constant.issuperset(op.results)
        ):
            indices.append(index)
            read.update(op.operands)
    return tuple(reversed(indices))
