"""What copies of one operand can take while its operation runs, as the states of one node.

An operation wants a tensor in one sharding, or in several where it reads the tensor twice. Each
that is not the tensor's own is a copy; and the first reader of a scope, which makes its copies
itself, also has the largest intermediate of a resharding in several steps. A marker has that alone,
as the copy is its result. How many bytes that is depends on both sides, so a state is (shardings
wanted, bytes), and fits all shardings of the tensor that need no more.

No program holds less in copies of one operation at its time; where names of one value may share a
copy, one of them counts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from shardopt.cost.resharding_chain import can_reshard, resharding_stops
from shardopt.graph.op_graph import OpGraph
from shardopt.mesh.mesh import Sharding
from shardopt.solve.sharding.intra_op.copies import hands_on, is_sliced_by_readers
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem
from shardopt.solve.sharding.intra_op.sharded_ops import local_bytes

Wanted = tuple[Sharding, ...]


@dataclass(frozen=True, eq=False)
class CopyStates:
    """`required` are the shardings wanted by each strategy of the operation, `present` those of
    each strategy that makes the tensor; `bytes_of` pairs of the two are held in copies."""

    required: tuple[Wanted, ...]
    present: tuple[Sharding, ...]
    bytes_of: Mapping[tuple[Wanted, Sharding], int]
    states: tuple[tuple[Wanted, int], ...]

    @property
    def bytes(self) -> np.ndarray:
        """int64 `[states]`."""
        return np.array([size for _, size in self.states], dtype=np.int64)

    @property
    def of_reader(self) -> np.ndarray:
        """bool `[strategies of the reader, states]`: which states a strategy may have."""
        return _equal(self.required, [wanted for wanted, _ in self.states])

    @property
    def of_tensor(self) -> np.ndarray:
        """bool `[strategies of the maker, states]`: which states hold as much as is needed."""
        distinct = {sharding: n for n, sharding in enumerate(dict.fromkeys(self.present))}
        rows = [
            [self.bytes_of[wanted, sharding] <= size for wanted, size in self.states]
            for sharding in distinct
        ]
        return np.array(rows)[[distinct[sharding] for sharding in self.present]]

    def state(self, reader: int, maker: int) -> int:
        """The least state under two strategies."""
        wanted = self.required[reader]
        return self.states.index((wanted, self.bytes_of[wanted, self.present[maker]]))


def copy_states(base: IntraOpProblem, op: int, tensor: int) -> CopyStates:
    graph, tables = base.tables.graph, base.tables
    slots = [slot for slot, operand in enumerate(graph.ops[op].operands) if operand == tensor]
    required = tuple(
        tuple(dict.fromkeys(strategy.operands[slot] for slot in slots))
        for strategy in tables.ops[op].strategies
    )
    present = base.columns[tensor].shardings
    held = _Held(base, op, tensor)
    bytes_of = {
        (wanted, source): held.bytes(wanted, source)
        for wanted in dict.fromkeys(required)
        for source in dict.fromkeys(present)
    }
    states = dict.fromkeys((wanted, size) for (wanted, _), size in bytes_of.items())
    return CopyStates(required, present, bytes_of, tuple(states))


class _Held:
    """Bytes of the copies of one operand of one operation."""

    def __init__(self, base: IntraOpProblem, op: int, tensor: int) -> None:
        graph = base.tables.graph
        self.base, self.tensor = base, tensor
        self.is_result = hands_on(graph, op, tensor)
        names = _names(graph, tensor)
        others = graph.ops[op].operands[: graph.ops[op].operands.index(tensor)]
        # Another operand before it may be the same value: one of them counts.
        self.is_counted_there = not names.isdisjoint(others)
        self.makes_copies = self.is_result or _is_first_reader(base, op, names)

    def bytes(self, wanted: Wanted, source: Sharding) -> int:
        graph, mesh, fused = self.base.tables.graph, self.base.tables.mesh, self.base.tables.fusion
        tensor, size = self.tensor, 0
        for target in () if self.is_counted_there else wanted:
            is_free = target == source or (
                not self.is_result
                and is_sliced_by_readers(graph, mesh, fused.fused, tensor, (source, target))
            )
            if is_free:
                continue
            if not self.is_result:
                size += local_bytes(graph, mesh, tensor, target)
            if self.makes_copies and can_reshard(source, target):
                stops = resharding_stops(source, target, mesh, graph.tensors[tensor].shape)
                size += max((local_bytes(graph, mesh, tensor, stop) for stop in stops), default=0)
        return size


def _names(graph: OpGraph, tensor: int) -> set[int]:
    """The tensors that a value may be read as, with or without a move between them."""
    while tensor in graph.handed_on:
        tensor = graph.handed_on[tensor]
    names = {tensor}
    for result, operand in graph.handed_on.items():
        names |= {result} if operand in names else set()
    return names


def _is_first_reader(base: IntraOpProblem, op: int, names: Set[int]) -> bool:
    """Whether no operation of its scope reads one of these tensors before it, and may have made the
    copy."""
    graph, places = base.tables.graph, base.places
    scope, consumers = graph.ops[op].scope, graph.consumers()
    readers = (
        reader
        for tensor in names
        for reader in consumers[tensor]
        if reader in places
        and graph.ops[reader].scope == scope
        and not hands_on(graph, reader, tensor)
    )
    return min(readers, key=places.__getitem__) == op


def _equal(first: Sequence[Hashable], second: Sequence[Hashable]) -> np.ndarray:
    number = {value: n for n, value in enumerate(dict.fromkeys((*first, *second)))}
    rows, columns = (np.array([number[value] for value in side]) for side in (first, second))
    return rows[:, None] == columns[None, :]
