"""Kernels that a GPU compiler merges because they go over the same elements.

    %max = reduce %s over rows
    %e = exponential(%s - broadcast %max)
    %sum = reduce %e over rows
    %p = %e / broadcast %sum

is one kernel: it reads %s once, keeps its rows on the chip, and writes only what others read.
Softmax and normalisations are chains of this kind; an update of an optimizer writes its moments and
the weights, and a step of a random generator all of its words.

XLA fuses such chains into one kernel of several results (xla/service/gpu/transforms/
multi_output_fusion.cc), or into one that holds rows (softmax_rewriter_triton.cc). The latter needs
Triton, which refuses GPUs before Ampere: there a kernel ends with what reduces its rows, and %s
above is read three times. What only operations of one kernel read is never written to memory.
Kernels are told apart by the operation that ends them, as in
`shardopt.solve.sharding.kernels.kernel_bytes`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from math import prod

from shardopt.cost.compute import HeldRows
from shardopt.graph.op_graph import FactorRule, Op, OpGraph
from shardopt.hardware.cluster import Fusing
from shardopt.solve.sharding.kernels.attention import find_attention
from shardopt.solve.sharding.kernels.fusion import (
    CHEAP,
    Fusion,
    fuse,
    is_renaming,
    touched_at,
)
from shardopt.solve.sharding.kernels.memory_orders import (
    Order,
    find_memory_orders,
    find_rewrites,
)

# Elements that a block of a kernel holds: so many have the tiles that XLA chooses for softmax.
_LONGEST_ROW = 16384


@dataclass
class _Kernel:
    """Operations that end kernels which became one, what these read that none of them writes, and
    of it what they await at a barrier."""

    members: set[int]
    inputs: set[int] = field(default_factory=set)
    awaited: set[int] = field(default_factory=set)


def find_kernels(graph: OpGraph, cheap_to_clone: Set[int], fusing: Fusing) -> Fusion:
    """What a compiler fuses.

    A marker is no kernel and ends none: what reads its result reads the operand. Where the two
    have different shardings, the exchange between them is paid for by itself."""
    seen = graph.without_markers
    attention = find_attention(seen, CHEAP) if fusing.attention else ()
    if fusing.merged:
        of_attention = {op for place in attention for op in place.home}
        found = find_memory_orders(seen, CHEAP, of_attention)
        copied = {(each.op, each.operand) for each in found.misfits}
        fusion = fuse(seen, cheap_to_clone, fusing, attention, copied)
        kernel = merged_kernels(seen, fusion, found.orders, fusing.rows)
        reducing = _reductions_taken(seen, fusion, kernel)
        fusion = _joined(seen, fusion, kernel)
        rewrites = find_rewrites(seen, found, CHEAP, fusion.fused, of_attention)
        fusion = replace(
            fusion, rewrites=rewrites, held=_held_rows(seen, fusion, reducing, fusing.recomputes)
        )
    else:
        fusion = fuse(seen, cheap_to_clone, fusing, attention)
        fusion = _joined(seen, fusion, fusion.kernel) if fusion.kernel else fusion
    return fusion if seen is graph else _with_markers(graph, fusion)


def _with_markers(graph: OpGraph, fusion: Fusion) -> Fusion:
    """Fusion of the graph without markers, with what these hand on: fused where the operand is, and
    read by those that read it."""
    fused, readers = set(fusion.fused), list(fusion.readers)
    consumers, number = graph.consumers(), fusion.kernel or range(len(graph.ops))
    for result, operand in graph.handed_on.items():
        if operand in fused:
            fused.add(result)
    for result in reversed(graph.handed_on):
        using = (touched_at(graph, fused, readers, reader) for reader in consumers[result])
        readers[result] = tuple(sorted({number[op] for each in using for op in each}))
    return replace(fusion, fused=frozenset(fused), readers=tuple(readers))


def _joined(graph: OpGraph, fusion: Fusion, kernel: tuple[int, ...]) -> Fusion:
    """Values that only their own kernel reads are fused too, and what a kernel reads of others is
    read where it ends."""
    outputs = set(graph.outputs)
    readers = [{kernel[op] for op in using} for using in fusion.readers]
    inside = set[int]()
    for index, op in enumerate(graph.ops):
        for result in op.results:
            if result in fusion.fused or kernel[index] not in readers[result]:
                continue
            if len(readers[result]) == 1 and result not in outputs:
                inside.add(result)
            else:
                readers[result].discard(kernel[index])
    return replace(
        fusion,
        fused=fusion.fused | inside,
        readers=tuple(tuple(sorted(using)) for using in readers),
        kernel=kernel,
    )


def _reductions_taken(graph: OpGraph, fusion: Fusion, kernel: tuple[int, ...]) -> list[int]:
    """The reductions whose results their own kernels read."""
    return [
        index
        for index, op in enumerate(graph.ops)
        if op.name == "reduce"
        and not is_renaming(graph, op)
        and any(kernel[reader] == kernel[index] for t in op.results for reader in fusion.readers[t])
    ]


def _held_rows(
    graph: OpGraph, fusion: Fusion, reducing: Iterable[int], recomputes: bool
) -> dict[int, HeldRows]:
    """By the last of such reductions in each kernel, where rows fit on the chip. Where exponentials
    are not computed again, as XLA does not in f16, softmax backward is several kernels, which hold
    rows of one tensor at most."""
    kernels: dict[int, list[int]] = defaultdict(list)
    for index in reducing:
        op = graph.ops[index]
        rows = max(1, graph.tensors[op.results[0]].elements)
        if graph.tensors[op.operands[0]].elements <= _LONGEST_ROW * rows:
            kernels[fusion.kernel[index]].append(index)
    held: dict[int, HeldRows] = {}
    for reductions in kernels.values():
        ops = [graph.ops[index] for index in reductions]
        size = graph.tensors[ops[0].operands[0]].elements
        read, made_by = _made_of(graph, fusion.fused, (t for op in ops for t in op.operands))
        tensors = [graph.tensors[t] for t in read if graph.tensors[t].elements == size]
        is_written = any(t not in fusion.fused for op in ops for t in op.results)
        apart = not recomputes or any(tensor.dtype == "f16" for tensor in tensors)
        held[reductions[-1]] = HeldRows(
            min(1, len(tensors)) if apart else len(tensors),
            "exponential" in made_by,
            sum(tensor.itemsize for tensor in tensors) if is_written else 0.0,
        )
    return held


def _made_of(graph: OpGraph, fused: Set[int], tensors: Iterable[int]) -> tuple[set[int], set[str]]:
    """What is read from memory to make these values on the way, and the names of the operations
    that make them."""
    producers = graph.producers()
    read, names, seen = set[int](), set[str](), set[int]()
    waiting = list(tensors)
    while waiting:
        tensor = waiting.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        if tensor not in fused or producers[tensor] < 0:
            read.add(tensor)
            continue
        op = graph.ops[producers[tensor]]
        names.add(op.name)
        waiting += op.operands
    return read, names


def merged_kernels(
    graph: OpGraph, fusion: Fusion, orders: Sequence[Order | None], rows: bool = True
) -> tuple[int, ...]:
    """For each operation the number of the kernel that it would end, equal for those of one kernel.

    A kernel takes in one that reads its results if both go over as many elements, in one fragment
    and as often, and if all else that the reader reads was there before the first of them began:
    then no kernel waits for itself. None reaches over a barrier, nor, without `rows`, from what
    reduces rows to what reads the result. Rows are those in memory, where tensors have their
    dimensions in `orders`. Kernels of attention stay as they are."""
    producers = graph.producers()
    reads: list[set[int]] = [set() for _ in graph.ops]
    for tensor, readers in enumerate(fusion.readers):
        if tensor not in fusion.fused:
            for reader in readers:
                reads[reader].add(tensor)
    awaited = {index: set(tensors) for index, tensors in fusion.awaited(graph).items()}
    for index, tensors in awaited.items():
        reads[index] |= tensors
    # Kernels of attention write when they end, whatever they made before.
    made_at = [fusion.kernel[op] if fusion.kernel and op >= 0 else op for op in producers]
    kernels = {
        index: _Kernel({index}, reads[index], awaited.get(index, set()))
        for index in range(len(graph.ops))
    }
    number = list(fusion.kernel or range(len(graph.ops)))
    of_attention = {op for place in fusion.attention for op in place.home}
    sizes = [_elements(graph, op, orders) for op in graph.ops]
    for index, op in enumerate(graph.ops):
        size = sizes[index]
        if not size or index in of_attention:
            continue
        makers = defaultdict(set)
        ended = set() if rows else _reducing(graph, producers, reads[index], number)
        for tensor in reads[index]:
            maker = producers[tensor]
            if (
                maker >= 0
                and maker not in of_attention
                and tensor not in kernels[index].awaited
                and sizes[maker] == size
                and _runs_like(graph.ops[maker], op)
                and number[maker] not in ended
            ):
                makers[number[maker]].add(tensor)
        if not makers:
            continue
        # All of them if that works, else the first one that fits alone.
        for chosen in (tuple(makers), *((each,) for each in sorted(makers))):
            whole = _union([kernels[index], *(kernels[each] for each in chosen)], made_at)
            if whole is not None:
                kernels[index] = whole
                for member in whole.members:
                    number[member] = index
                break
    return tuple(number)


def _reducing(
    graph: OpGraph, producers: Sequence[int], tensors: Iterable[int], number: Sequence[int]
) -> set[int]:
    """Of the kernels that make tensors, those that reduce something to them."""
    makers = (producers[tensor] for tensor in tensors)
    return {number[op] for op in makers if op >= 0 and graph.ops[op].name == "reduce"}


def _union(kernels: list[_Kernel], made_at: Sequence[int]) -> _Kernel | None:
    """None where a part of the whole would have to wait for another. `made_at` are the operations
    behind which tensors are in memory."""
    members = set().union(*(each.members for each in kernels))
    awaited = set().union(*(each.awaited for each in kernels))
    if any(made_at[tensor] in members for tensor in awaited):
        return None
    inputs = {t for each in kernels for t in each.inputs if made_at[t] not in members}
    first = min(members)
    return (
        _Kernel(members, inputs, awaited)
        if all(made_at[tensor] < first for tensor in inputs)
        else None
    )


def _elements(graph: OpGraph, op: Op, orders: Sequence[Order | None]) -> int:
    """How many elements a kernel that ends with the operation goes over; 0 for one that is no loop
    over elements."""
    if op.name == "reduce" and not is_renaming(graph, op):
        operand, order = graph.tensors[op.operands[0]].shape, orders[op.operands[0]]
        inner = op.rule is not None and _reduces_rows(op.rule, order or range(len(operand)))
        return prod(operand) if inner else 0
    loops = op.name in CHEAP or op.name == "reduce"
    return graph.tensors[op.results[0]].elements if loops and op.results else 0


def _reduces_rows(rule: FactorRule, order: Sequence[int]) -> bool:
    """Whether the innermost dimensions are reduced, so that whole rows are near each other."""
    reduced = [bool(set(rule.operands[0][dim]) & rule.reduction) for dim in order]
    return bool(reduced) and reduced[-1] and sorted(reduced) == reduced


def _runs_like(first: Op, second: Op) -> bool:
    return (first.scope, first.repeat) == (second.scope, second.repeat)
