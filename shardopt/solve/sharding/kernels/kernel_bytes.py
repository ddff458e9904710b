"""How often each operation of a graph touches each of its tensors in memory, when a compiler fuses
it into kernels.

    %1 = exponential %0        one kernel: reads %0 and %2 once, writes %3. The exponential pays for
    %3 = multiply %1, %2       %0, the product for %2 and %3, and nobody for %1.

A kernel reads a tensor once, however many of its operations do; the first of them pays. A cheap
operation that several kernels repeat pays once for each, or for the slices that each takes. Fusion
is that of `shardopt.solve.sharding.kernels.merged_kernels`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from shardopt.cost.compute import HeldRows
from shardopt.graph.attention_use import AttentionUse
from shardopt.graph.op_bytes import touched
from shardopt.graph.op_graph import OpGraph
from shardopt.solve.sharding.kernels.fusion import Fusion, part_read


@dataclass(frozen=True)
class Accesses:
    """`counts` are, for each tensor of an operation, operands first, in how many kernels the
    operation touches its memory, those that take a part of it counted as the part. `attention` are
    the kernels of attention that compute it. `copies` are, for each operand, how many kernels write
    it in another order of its dimensions, which the operation then reads, and `strewn` how many of
    these in an order whose innermost dimension is short; empty stands for none. `held` is what the
    kernel of a reduction keeps that takes its result."""

    counts: tuple[float, ...]
    attention: tuple[AttentionUse, ...] = ()
    copies: tuple[int, ...] = ()
    strewn: tuple[int, ...] = ()
    held: HeldRows | None = None


# How much longer kernels take that write a tensor in an order whose innermost dimension is short.
# Where it has three or four numbers of 16 bits, XLA's move 0.64, 0.85 and 1.0 TB/s on an H200,
# other copies 4.1 (benchmarks/one_device/h200).
_STREWN = 5


def kernel_accesses(graph: OpGraph, fusion: Fusion) -> tuple[Accesses, ...]:
    """For each operation."""
    fused, number = fusion.fused, fusion.kernel or range(len(graph.ops))
    rewrites = fusion.rewrites
    producers = graph.producers()
    seen: list[set[int]] = [set() for _ in graph.tensors]
    uses: dict[int, tuple[AttentionUse, ...]] = {}
    for each in (kernel for place in fusion.attention for kernel in place.kernels):
        uses |= {op: (*uses.get(op, ()), each.use) for op in each.ops}
    accesses: list[Accesses] = []
    for index, op in enumerate(graph.without_markers.ops):
        if not op.operands and op.results and op.results[0] in graph.handed_on:
            accesses.append(Accesses((0, 0)))
            continue
        kernels = {index}
        shares = defaultdict[int, float](float)
        if op.results and op.results[0] in fused:
            kernels = set(fusion.readers[op.results[0]])
            for reader, share in fusion.parts.get(op.results[0], {}).items():
                shares[number[reader]] += share
        kernels = {number[kernel] for kernel in kernels}
        reads = []
        for operand in op.operands:
            # A kernel that makes a value has it on the chip.
            producing = {number[producers[operand]]} if producers[operand] >= 0 else set()
            fresh = set() if operand in fused else kernels - producing - seen[operand]
            seen[operand] |= fresh
            part = max(1, part_read(graph, op, operand))
            reads.append(sum(min(1, shares.get(kernel, 1) * part) for kernel in fresh))
        written = (
            int(result not in fused)
            * (
                1
                + rewrites.more_writes.get(result, 0)
                + (_STREWN - 1) * rewrites.strewn_writes.get(result, 0)
            )
            for result in op.results
        )
        copies, strewn = rewrites.copies.get(index, ()), rewrites.strewn.get(index, ())
        held = fusion.held.get(index)
        accesses.append(Accesses((*reads, *written), uses.get(index, ()), copies, strewn, held))
    return tuple(accesses)


def accessed_bytes(
    name: str, num_operands: int, sizes: Sequence[float], accesses: Accesses
) -> float:
    """Bytes that an operation reads and writes, given those of its tensors (operands first) and how
    often it touches each."""
    rows = touched(name, num_operands, len(sizes) - num_operands)
    return sum(sizes[k] * share * n for (k, share), n in zip(rows, accesses.counts, strict=True))


def copied_bytes(sizes: Sequence[float], accesses: Accesses) -> float:
    """Bytes that copies of operands read and write, given those of the operands; more where they
    take longer than those."""
    strewn = accesses.strewn or (0,) * len(accesses.copies)
    counts = (n + (_STREWN - 1) * m for n, m in zip(accesses.copies, strewn, strict=True))
    return sum(2 * size * n for size, n in zip(sizes, counts, strict=False))


def kernels_of(name: str, num_operands: int, num_results: int, accesses: Accesses | None) -> int:
    """How many kernels end with an operation: one where it writes a result to memory, none where it
    is fused into what reads it, or moves nothing at all. Without `accesses` it runs alone."""
    written = [share for _, share in touched(name, num_operands, num_results)[num_operands:]]
    counts = (1,) * num_results if accesses is None else accesses.counts[num_operands:]
    return int(any(share and count for share, count in zip(written, counts, strict=True)))
