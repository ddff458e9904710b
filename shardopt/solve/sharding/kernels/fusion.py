"""Which values a compiler never writes to memory, because it fuses what makes them into what reads
them.

XLA fuses cheap operations into their readers (xla/service/instruction_fusion.cc), into several of
them too, as long as that does not move more bytes than writing the value once
(xla/backends/gpu/transforms/priority_fusion.cc). The rules here follow both closely enough to
predict what is held in memory, and how many bytes are read and written; see
benchmarks/cost/memory_accounting.py and benchmarks/cost/op_costs.py for how closely."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field

from shardopt.cost.compute import HeldRows
from shardopt.graph.op_bytes import touched
from shardopt.graph.op_graph import Op, OpGraph
from shardopt.hardware.cluster import UNFUSED, Fusing
from shardopt.solve.sharding.kernels.attention import FusedAttention
from shardopt.solve.sharding.kernels.memory_orders import NO_REWRITES, Rewrites

# Not computed twice: fused only where there is one reader. Compilers that merge kernels, XLA's for
# GPUs, compute all but the long ones again: on a chip that takes less time than memory.
_LONG = frozenset({"atan2", "cbrt", "cosine", "power", "sine", "tan", "tanh"})
_EXPENSIVE = _LONG | {
    "divide", "exponential", "exponential_minus_one", "log", "log_plus_one", "logistic",
    "remainder", "rsqrt", "sqrt",
}  # fmt: skip
# What a loop over the elements of a result can compute on the way, and what is cheap enough to be
# computed twice.
CHEAP = _EXPENSIVE | {
    "abs", "add", "and", "broadcast_in_dim", "ceil", "clamp", "compare", "concatenate",
    "convert", "dynamic_slice", "floor", "iota", "is_finite", "maximum", "minimum", "multiply",
    "negate", "not", "or", "pad", "reshape", "reverse", "round_nearest_afz",
    "round_nearest_even", "select", "shift_left", "shift_right_arithmetic",
    "shift_right_logical", "sign", "slice", "subtract", "transpose", "xor",
}  # fmt: skip
_READS_ON_THE_WAY = CHEAP | {"reduce"}
# What they read of an operand is what ends up in the result, of one made on the way, too.
_PARTS = frozenset({"dynamic_slice", "slice"})
# The compiler folds these into a matrix product.
_FOLDED = frozenset({"reshape", "transpose"})


@dataclass(frozen=True)
class Fusion:
    """`fused` are the values that never lie in memory. `readers[t]` are the operations, in program
    order, that touch the memory of tensor t: a reader whose result is fused does so where that
    result is used.

    `kernel[i]` is the operation that ends the kernel of operation i, of several if kernels are
    merged (`shardopt.solve.sharding.kernels.merged_kernels`), and itself else; empty stands for the
    latter. `attention` are places whose kernels are of attention
    (`shardopt.solve.sharding.kernels.attention`). `rewrites` are values that lie in memory in
    several orders of their dimensions. `held` are reductions, one of a kernel, whose kernels take
    what they reduce rows to. `parts[t]` are the shares of a value that its readers take, if some
    take slices."""

    fused: frozenset[int]
    readers: tuple[tuple[int, ...], ...]
    kernel: tuple[int, ...] = ()
    attention: tuple[FusedAttention, ...] = ()
    fusing: Fusing = UNFUSED
    rewrites: Rewrites = NO_REWRITES
    held: Mapping[int, HeldRows] = field(default_factory=dict)
    parts: Mapping[int, Mapping[int, float]] = field(default_factory=dict)

    def awaited(self, graph: OpGraph) -> dict[int, list[int]]:
        """For each kernel the values for which its operations wait at a barrier."""
        awaited: dict[int, dict[int, None]] = {}
        for index, op in enumerate(graph.ops):
            is_fused = op.waits and op.results and op.results[0] in self.fused
            kernels = (self.kernel[index] if self.kernel else index,)
            for kernel in self.readers[op.results[0]] if is_fused else kernels:
                awaited.setdefault(kernel, {}).update(dict.fromkeys(op.waits))
        return {kernel: list(tensors) for kernel, tensors in awaited.items() if tensors}


def is_renaming(graph: OpGraph, op: Op) -> bool:
    """Whether it reduces over dimensions of one element alone, which the compiler makes a
    reshape."""
    return op.name == "reduce" and all(
        graph.tensors[operand].elements == graph.tensors[result].elements
        for operand, result in zip(op.operands, op.results, strict=False)
    )


def touched_at(
    graph: OpGraph, fused: Set[int], readers: Sequence[Collection[int]], reader: int
) -> Collection[int]:
    """The operations at which a reader touches the memory of its operands: where its result is
    used, if that is fused or the operand itself handed on."""
    results = graph.ops[reader].results
    inside = results and (results[0] in fused or results[0] in graph.handed_on)
    return readers[results[0]] if inside else (reader,)


def fuse(
    graph: OpGraph,
    cheap_to_clone: Set[int],
    fusing: Fusing = UNFUSED,
    attention: tuple[FusedAttention, ...] = (),
    copied: Set[tuple[int, int]] = frozenset(),
) -> Fusion:
    """`cheap_to_clone` are values that each reader makes for itself, `copied` the operands, as
    numbers of an operation and of its operand, that a loop over elements writes anew for it."""
    place_of = {op: place for place in attention for op in place.home}
    fusible = _fusible(graph, cheap_to_clone, fusing, copied) - {
        tensor for op in place_of for tensor in graph.ops[op].results
    }
    reads = _bytes_read(graph, fusible)
    fused: set[int] = set()
    readers: list[dict[int, float]] = [{} for _ in graph.tensors]
    # From the end: who touches a value's memory depends on which of its readers are fused.
    for index in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[index]
        using = {index: 1.0}
        if (place := place_of.get(index)) is not None:
            inside = op.results[0] in place.scores
            fused.update(op.results * inside)
            using = dict.fromkeys(place.ends(index) if inside else (place.home[index],), 1.0)
        elif op.results and (result := op.results[0]) in fusible:
            # Fused, every reader reads the operands anew; else one does, and writes a value that
            # all read.
            size, count = graph.tensors[result].size_bytes, sum(readers[result].values())
            if (
                result in cheap_to_clone
                or count * reads[index] <= reads[index] + size + count * size
            ):
                fused.add(result)
                using = readers[result]
        for operand in op.operands:
            _add_readers(readers[operand], using, part_read(graph, op, operand))
    kernel = tuple(place_of[op].home[op] if op in place_of else op for op in range(len(graph.ops)))
    return Fusion(
        frozenset(fused),
        tuple(tuple(sorted(using)) for using in readers),
        kernel if attention else (),
        attention,
        fusing,
        parts={
            t: shares for t, shares in enumerate(readers) if any(s < 1 for s in shares.values())
        },
    )


def part_read(graph: OpGraph, op: Op, operand: int) -> float:
    """For each element of the result, as a share of it, what is read of an operand, as a share of
    that: of what is spread or becomes a part of the result, more."""
    size, made = graph.tensors[operand].elements, graph.tensors[op.results[0]].elements
    is_part = op.name in _PARTS and operand == op.operands[0]
    return made / max(1, size) if is_part or made > size else 1.0


def _add_readers(readers: dict[int, float], using: Mapping[int, float], part: float) -> None:
    """Those of a result read an operand as well: slices other elements each, what goes over all of
    them the same ones."""
    for reader, share in using.items():
        before = readers.get(reader, 0.0)
        more = share * part
        readers[reader] = min(1.0, before + more if part < 1 else max(before, more))


def _fusible(
    graph: OpGraph, cheap_to_clone: Set[int], fusing: Fusing, copied: Set[tuple[int, int]]
) -> set[int]:
    """Values that every reader can compute on its way. Nothing is fused through a barrier."""
    expensive = _LONG if fusing.merged and fusing.recomputes else _EXPENSIVE
    kept = {*graph.outputs, *graph.fenced}
    consumers = graph.consumers()
    fusible = set(cheap_to_clone)
    for op in graph.ops:
        cheap = op.name in CHEAP or is_renaming(graph, op)
        if not cheap or len(op.results) != 1 or op.results[0] in kept:
            continue
        using = consumers[op.results[0]]
        if (
            using
            and (op.name not in expensive or len(using) == 1)
            and all(
                _takes_in(op, graph.ops[reader])
                or _is_copied_for(reader, graph, op.results[0], copied)
                for reader in using
            )
        ):
            fusible.add(op.results[0])
    return fusible


def _is_copied_for(reader: int, graph: OpGraph, tensor: int, copied: Set[tuple[int, int]]) -> bool:
    operands = graph.ops[reader].operands
    return all((reader, k) in copied for k, operand in enumerate(operands) if operand == tensor)


def _takes_in(op: Op, reader: Op) -> bool:
    if reader.scope != op.scope or reader.repeat != op.repeat:
        return False
    if op.name == "reverse" and reader.name == "convolution":
        return _is_mirrored_kernel(op, reader)
    return reader.name in _READS_ON_THE_WAY or (op.name in _FOLDED and reader.name == "dot_general")


def _is_mirrored_kernel(op: Op, reader: Op) -> bool:
    """Whether a convolution runs backward over a kernel: the gradient of one with regard to its
    input, for which libraries have a call that reads the kernel as it is
    (xla/service/gpu/transforms/conv_rewriter.cc, `MatchBackwardInput`; not of grouped ones)."""
    rule, mirrored = reader.rule, {window.dim for window in op.windows if window.mirrored}
    images_are = reader.operands[0] == op.results[0]
    if rule is None or images_are or reader.operands[1] != op.results[0]:
        return False
    images, kernel, [results] = rule.operands[0], rule.operands[1], rule.results
    windowed = {window.dim for window in reader.windows}
    rows = {factor for dim, of in enumerate(images) if dim not in windowed for factor in of}
    columns = {factor for of in results for factor in of}
    if rows & columns & {factor for of in kernel for factor in of}:
        return False  # groups
    return mirrored == {d for d, of in enumerate(kernel) if not {*of} & (rows | columns)}


def _bytes_read(graph: OpGraph, fusible: Set[int]) -> list[float]:
    """For each operation what it reads of memory when what can be fused is, once of each tensor. A
    value for which more would be read than it has bytes is in memory, if several read it."""
    producers, consumers = graph.producers(), graph.consumers()
    # For each operation the tensors that it reads, with the bytes of each.
    sources: list[dict[int, float]] = []
    total: list[float] = []
    for op in graph.ops:
        tensors = (*op.operands, *op.results)
        read: dict[int, float] = {}
        for operand, (like, share) in zip(
            op.operands, touched(op.name, len(op.operands), len(op.results)), strict=False
        ):
            maker = producers[operand] if operand in fusible else -1
            size = graph.tensors[operand].size_bytes
            if maker >= 0 and (total[maker] <= size or len(consumers[operand]) == 1):
                inside = sources[maker]
                if (part := part_read(graph, op, operand)) < 1:
                    inside = {tensor: size * part for tensor, size in inside.items()}
            else:
                inside = {operand: graph.tensors[tensors[like]].size_bytes * share}
            for tensor, bytes_ in inside.items():
                read[tensor] = max(bytes_, read.get(tensor, 0.0))
        sources.append(read)
        total.append(sum(read.values()))
    return total
