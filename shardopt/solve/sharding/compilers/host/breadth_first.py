"""The order of kernels on hosts: breadth first, so that what does not depend on each other can run
at once (`BFScheduler` of xla/service/hlo_memory_scheduler.cc, which XLA's backend for hosts uses by
default). Whatever it does to memory, a kernel runs as soon as all has run that was ready before
it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from shardopt.solve.sharding.compilers.host.instructions import Program
from shardopt.solve.sharding.compilers.host.loop_fusion import Kernels

# A barrier is three instructions behind each other: its operands as a tuple, the barrier, its
# results one by one.
_HOPS_OF_BARRIER = 3

_Node = tuple[str, int]


def breadth_first(program: Program, found: Kernels, numbers: Sequence[int]) -> list[int]:
    """The kernels `numbers` of one executable in the order in which they run."""
    waiting, readers = _dependences(program, found, numbers)
    ready = deque(node for node, count in waiting.items() if not count)
    order = []
    while ready:
        node = ready.popleft()
        if node[0] == "kernel":
            order.append(node[1])
        for reader in readers.get(node, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return order


def _dependences(
    program: Program, found: Kernels, numbers: Sequence[int]
) -> tuple[dict[_Node, int], dict[_Node, list[_Node]]]:
    """How many nodes each node waits for, and which wait for it. Nodes are inputs, which come
    first, kernels and hops of barriers."""
    writers = {b: number for number in numbers for b in found.kernels[number].results}
    barriers: dict[tuple[int, ...], int] = {}

    def maker(buffer: int) -> _Node:
        return ("kernel", writers[buffer]) if buffer in writers else ("input", buffer)

    def behind(waits: Sequence[int]) -> _Node:
        entered = tuple(dict.fromkeys(map(found.buffer, waits)))
        number = barriers.setdefault(entered, len(barriers))
        return (f"hop {_HOPS_OF_BARRIER}", number)

    needs: dict[_Node, dict[_Node, None]] = {}
    for number in numbers:
        kernel = found.kernels[number]
        waits = (program.instructions[index].waits for index in kernel.members)
        needs[("kernel", number)] = dict.fromkeys(
            (*map(maker, kernel.reads), *(behind(each) for each in waits if each))
        )
    for entered, number in barriers.items():
        needs[("hop 1", number)] = dict.fromkeys(map(maker, entered))
        for hop in range(2, _HOPS_OF_BARRIER + 1):
            needs[(f"hop {hop}", number)] = {(f"hop {hop - 1}", number): None}
    inputs = sorted({node for each in needs.values() for node in each if node[0] == "input"})
    waiting = dict.fromkeys(inputs, 0)
    waiting.update((node, len(each)) for node, each in needs.items())
    return waiting, _reversed(needs)


def _reversed(needs: dict[_Node, dict[_Node, None]]) -> dict[_Node, list[_Node]]:
    readers: dict[_Node, list[_Node]] = {}
    for reader, each in needs.items():
        for made in each:
            readers.setdefault(made, []).append(reader)
    return readers
