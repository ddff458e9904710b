"""In which order a compiler runs the operations of a graph.

XLA fuses cheap operations into their readers (`shardopt.solve.sharding.kernels.merged_kernels`) and
then orders what is left by its own means, mostly to save memory (the update of a weight right
behind its gradient, not at the end of the step). The rules here follow its list scheduler
(xla/service/hlo_memory_scheduler.cc) closely enough to predict what is held when; see
benchmarks/cost/memory_accounting.py for how closely."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from shardopt.graph.op_graph import Op, OpGraph
from shardopt.solve.sharding.kernels.fusion import Fusion
from shardopt.solve.sharding.kernels.merged_kernels import find_kernels


@dataclass(frozen=True)
class SecondBuffer:
    """A value that a kernel writes once more, in an order of dimensions that `readers` want, say:
    from operation `op` on, until the last of these has run."""

    tensor: int
    op: int
    readers: tuple[int, ...]


@dataclass(frozen=True)
class ExecutionOrder:
    """`order` are all operations, fragment by fragment; `fused` the values that never lie in
    memory.

    `readers[t]` are the operations, in program order, that touch the memory of tensor t: a reader
    whose result is fused does so where that result is used, and one whose kernel is merged with
    others where that kernel ends.

    `second_buffers` hold values that lie in memory more than once. `overwritten[t]` are the tensors
    over which tensor t can be written where they die; None where each operation decides alone."""

    order: tuple[int, ...]
    fused: frozenset[int]
    readers: tuple[tuple[int, ...], ...]
    second_buffers: tuple[SecondBuffer, ...] = ()
    overwritten: Mapping[int, frozenset[int]] | None = None


def place_with_makers(
    op: int, makers_of: Callable[[int], Iterable[int]], order: dict[int, None]
) -> None:
    """Append `op` to `order`, behind those of its makers, and of theirs, that are not in it; the
    last of `makers_of` comes first."""
    # A stack of its own: chains of fused operations exceed what Python allows of recursion.
    pending = [(op, False)]
    while pending:
        current, ready = pending.pop()
        if current in order:
            continue
        if ready:
            order[current] = None
            continue
        pending.append((current, True))
        pending += [(maker, False) for maker in makers_of(current)]


def execution_order(graph: OpGraph, cheap_to_clone: Set[int], fusion: Fusion) -> ExecutionOrder:
    """The better of program order and list scheduling, by the bytes of whole tensors; a loop runs
    as a whole, and so does a kernel."""
    if graph.loops:
        folded, members = with_loops_as_ops(graph)
        inner = find_kernels(folded, cheap_to_clone, fusion.fusing)
        order = [op for node in _order(folded, inner) for op in members[node]]
    else:
        order = _order(graph, fusion)
    return ExecutionOrder(tuple(order), fusion.fused, fusion.readers)


def _order(graph: OpGraph, fusion: Fusion) -> list[int]:
    scheduler = _Scheduler(graph, fusion)
    order: list[int] = []
    for ops in fragments(graph):
        written = scheduler.placed(scheduler.kernels(ops), ops)
        listed = scheduler.placed(scheduler.listed(ops), ops)
        # As XLA does it, which keeps the best of several orders.
        order += written if scheduler.peak(written) <= scheduler.peak(listed) else listed
    return order


def with_loops_as_ops(graph: OpGraph) -> tuple[OpGraph, list[range]]:
    """The graph with one operation for each outermost loop, and the operations that each of its own
    stands for."""
    ops: list[Op] = []
    members: list[range] = []
    consumers = graph.consumers()
    stops = dict(sorted(graph.loops))  # of those that start together, the outer one
    index = 0
    while index < len(graph.ops):
        span = range(index, max(stops.get(index, 0), index + 1))
        ops.append(graph.ops[index] if len(span) == 1 else _loop(graph, span, consumers))
        members.append(span)
        index = span.stop
    return replace(graph, ops=tuple(ops), loops=()), members


def _loop(graph: OpGraph, span: range, consumers: Sequence[Sequence[int]]) -> Op:
    inside = [graph.ops[op] for op in span]
    made = dict.fromkeys(tensor for op in inside for tensor in op.results)
    read = dict.fromkeys(tensor for op in inside for tensor in op.operands if tensor not in made)
    kept = tuple(
        t for t in made if t in graph.outputs or any(reader not in span for reader in consumers[t])
    )
    waits = dict.fromkeys(tensor for op in inside for tensor in op.waits if tensor not in made)
    group, repeat = inside[0].group, inside[0].repeat
    return Op("while", tuple(read), kept, None, group=group, repeat=repeat, waits=tuple(waits))


def fragments(graph: OpGraph) -> list[list[int]]:
    ops_of_group: dict[int, list[int]] = {}
    for index, op in enumerate(graph.ops):
        ops_of_group.setdefault(op.group, []).append(index)
    return list(ops_of_group.values())


class _Scheduler:
    """Kernels are told apart by the operation that ends them."""

    def __init__(self, graph: OpGraph, fusion: Fusion) -> None:
        self.graph, self.readers = graph, fusion.readers
        # What a marker hands on has memory already.
        self.fused = fusion.fused | graph.handed_on.keys()
        self.attention = bool(fusion.attention)
        self.makers = graph.producers()
        self.kernel = fusion.kernel or range(len(graph.ops))
        self.members: dict[int, list[int]] = {}
        for op, last in enumerate(self.kernel):
            self.members.setdefault(last, []).append(op)
        self.results = {
            kernel: [t for op in members for t in graph.ops[op].results]
            for kernel, members in self.members.items()
        }
        self.producers = [self.kernel[op] if op >= 0 else op for op in self.makers]
        self.outputs = set(graph.without_markers.outputs) | self._left_behind()
        # Outputs are held in the end whatever the order, and most take over the memory of a donated
        # argument.
        free = self.outputs | self.fused
        self.memory = [
            0 if t in free else tensor.size_bytes for t, tensor in enumerate(graph.tensors)
        ]
        # What is freed when the last reader of a temporary has run, and what each kernel makes.
        self.freed = [
            size if maker >= 0 else 0
            for size, maker in zip(self.memory, self.producers, strict=True)
        ]
        self.made = {
            kernel: sum([self.memory[t] for t in results])
            for kernel, results in self.results.items()
        }
        self.fused_makers = self._fused_makers()
        self.reads: dict[int, list[int]] = {}
        for tensor, using in enumerate(self.readers):
            for op in using:
                if tensor not in self.fused:
                    self.reads.setdefault(op, []).append(tensor)
        # What kernels wait for at a barrier, and do not read.
        self.waits = {
            kernel: [t for t in tensors if kernel not in (*self.readers[t], self.producers[t])]
            for kernel, tensors in fusion.awaited(graph).items()
        }
        self.waiters: dict[int, list[int]] = {}
        for kernel, tensors in self.waits.items():
            for tensor in tensors:
                self.waiters.setdefault(tensor, []).append(kernel)

    def _fused_makers(self) -> dict[int, list[int]]:
        """For operations that read what is fused the operations of their fragment that make it, the
        last operand's first."""
        ops, found = self.graph.ops, dict[int, list[int]]()
        for index, op in enumerate(ops):
            for tensor in reversed(op.operands):
                maker = self.makers[tensor]
                if maker >= 0 and tensor in self.fused and ops[maker].group == op.group:
                    found.setdefault(index, []).append(maker)
        return found

    def _left_behind(self) -> set[int]:
        """Values that other fragments read: outputs of the program that their own fragment is."""
        ops = self.graph.ops
        return {
            tensor
            for op in ops
            for tensor in op.operands
            if (maker := self.makers[tensor]) >= 0 and ops[maker].group != op.group
        }

    def kernels(self, ops: Sequence[int]) -> list[int]:
        """Those of a fragment, in the order of their first operations as far as each has what it
        reads: a merged kernel always has, one of attention may have to wait for it."""
        begun = dict.fromkeys(self.kernel[op] for op in ops)
        kernels = [kernel for kernel in begun if self._writes(kernel)]
        return self._behind_makers(kernels) if self.attention else kernels

    def _behind_makers(self, kernels: Sequence[int]) -> list[int]:
        place = {kernel: number for number, kernel in enumerate(kernels)}
        waiting = dict.fromkeys(kernels, 0)
        followers: dict[int, list[int]] = {}
        for kernel in kernels:
            tensors = (*self.reads.get(kernel, ()), *self.waits.get(kernel, ()))
            for maker in dict.fromkeys(self.producers[t] for t in tensors):
                if maker in place and maker != kernel:
                    waiting[kernel] += 1
                    followers.setdefault(maker, []).append(kernel)
        ready = [place[kernel] for kernel in kernels if not waiting[kernel]]
        order: list[int] = []
        while ready:
            kernel = kernels[heappop(ready)]
            order.append(kernel)
            for follower in followers.get(kernel, ()):
                waiting[follower] -= 1
                if not waiting[follower]:
                    heappush(ready, place[follower])
        assert len(order) == len(kernels), "no kernel waits for itself"
        return order

    def _writes(self, kernel: int) -> bool:
        results = self.results[kernel]
        return not results or not self.fused.issuperset(results)

    def placed(self, kernels: Sequence[int], ops: Sequence[int]) -> list[int]:
        """The operations `ops` of one fragment by kernels in the given order, fused ones before the
        first that needs them."""
        order: dict[int, None] = {}
        for kernel in kernels:
            for op in self.members[kernel]:
                if op in self.fused_makers:
                    place_with_makers(op, self._makers_of, order)
                else:
                    order.setdefault(op)
        for op in ops:  # constants that only other fragments read
            order.setdefault(op)
        return list(order)

    def _makers_of(self, op: int) -> Sequence[int]:
        return self.fused_makers.get(op, ())

    def listed(self, ops: Sequence[int]) -> list[int]:
        """Of the operations that are ready, always the one that frees most bytes beyond those it
        needs."""
        inside, kernels = set(ops), self.kernels(ops)
        waiting = {
            op: sum(
                self.producers[t] in inside
                for t in (*self.reads.get(op, ()), *self.waits.get(op, ()))
            )
            for op in kernels
        }
        left = {t: len(self.readers[t]) for op in kernels for t in self.reads.get(op, ())}
        heap: list[tuple[int, int]] = []
        done: dict[int, None] = {}
        for op in kernels:
            if not waiting[op]:
                heappush(heap, (-self._gain(op, left), op))
        while heap:
            value, op = heappop(heap)
            if op in done:
                continue
            # A heap cannot change entries: an outdated one goes back with its present gain.
            if (now := -self._gain(op, left)) != value:  # readers before it have made it better
                heappush(heap, (now, op))
                continue
            done[op] = None
            for tensor in self.reads.get(op, ()):
                left[tensor] -= 1
                for reader in self.readers[tensor] if left[tensor] == 1 else ():
                    if reader in waiting and not waiting[reader] and reader not in done:
                        heappush(heap, (-self._gain(reader, left), reader))
            for tensor in self.results[op]:
                for reader in (*self.readers[tensor], *self.waiters.get(tensor, ())):
                    if reader in waiting:
                        waiting[reader] -= 1
                        if not waiting[reader]:
                            heappush(heap, (-self._gain(reader, left), reader))
        return list(done)

    def _gain(self, op: int, left: dict[int, int]) -> int:
        freed = sum([self.freed[t] for t in self.reads.get(op, ()) if left[t] == 1])
        return freed - self.made[op]

    def peak(self, order: Sequence[int]) -> int:
        """Bytes of temporaries at the worst time."""
        inside, order = set(order), self.kernels(order)
        left = {t: len(self.readers[t]) for op in order for t in self.reads.get(op, ())}
        live = peak = 0
        for op in order:
            live += self.made[op]
            peak = max(peak, live)
            for tensor in self.reads.get(op, ()):
                left[tensor] -= 1
                if not left[tensor] and self.producers[tensor] in inside:
                    live -= self.freed[tensor]
        return peak
