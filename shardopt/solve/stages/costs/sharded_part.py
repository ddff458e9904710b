"""Seconds and bytes of a stage whose sharding is known: the same account as in
`shardopt.solve.sharding.intra_op` (`plan`, `lifetimes`), faster where many operations are alike.

Nodes of one kind with the same choice have the same shardings, so each such (kind, choice) pair is
looked at once. Only operations that reshard their operands are walked through one by one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardopt.cost.collectives import PERMUTE
from shardopt.cost.host_link import host_seconds
from shardopt.mesh.mesh import Sharding
from shardopt.solve.sharding.intra_op.communication import find_reshards
from shardopt.solve.sharding.intra_op.copies import TensorCopy, copies_after_others, find_copies
from shardopt.solve.sharding.intra_op.overlap import (
    beside_computing,
    in_pieces_share,
    saved_seconds,
)
from shardopt.solve.sharding.intra_op.sharded_ops import ShardedOps, Transient
from shardopt.solve.sharding.strategies.costs import CommunicationCosts
from shardopt.solve.sharding.strategies.strategies import Strategy
from shardopt.solve.sharding.strategies.tables import OpStrategies, StrategyTables
from shardopt.solve.stages.costs.part_facts import Held, PartFacts


@dataclass(frozen=True, eq=False)
class ShardedPart:
    """`choice` is the strategy of every operation, then the sharding of every input. Copies of
    `transient` tensors are dropped after use."""

    facts: PartFacts
    tables: StrategyTables
    choice: tuple[int, ...]
    transient: Transient

    def seconds(self) -> np.ndarray:
        """Seconds of a step in each fragment, `[fragments]`: computing, collectives and
        reshardings, those that several operations of a fragment share once, and what travels to
        hosts and back, without the writing of inputs; less what runs beside computing where
        programs do that."""
        part, tables = self.facts.part, self.tables
        groups = [op.group for op in part.graph.ops]
        of_pair = np.array([self._seconds_of(node) for node in self._pairs[0]])
        seconds, beside = np.zeros(len(part.kinds)), np.zeros(len(part.kinds))
        np.add.at(seconds, groups, of_pair[self._pairs[1][: len(groups)]])
        for each in find_reshards(self._resharding, tables.cluster):
            op = part.graph.ops[each.op]
            whole = op.repeat // (op.trips or 1) * each.trips * each.seconds
            seconds[op.group] += whole
            beside[op.group] += each.beside * whole
        link = tables.cluster.group_of(tables.mesh).host_link
        for group, tensor, times in part.moves:
            seconds[group] += times * host_seconds(link, self.bytes_of(tensor))
        if not tables.cluster.group_of(tables.mesh).overlap_share:
            return seconds
        ahead, saved = self._beside_seconds()
        beside += ahead
        seconds -= saved
        computing = np.zeros(len(part.kinds))
        for node, op in enumerate(part.graph.ops):
            computing[op.group] += op.repeat * self._strategy(node).compute_seconds
        pairs = zip(computing.tolist(), beside.tolist(), strict=True)
        return seconds - [saved_seconds(*both) for both in pairs]

    def _beside_seconds(self) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of a step in each fragment by which computing gets on beside the collectives of
        operations: of those that no product waits for, and those of products in pieces; and those
        that the first kind saves where it is combined."""
        part, tables = self.facts.part, self.tables
        owner = tables.cluster.group_of(tables.mesh)
        late = beside_computing(part.graph)[1]
        links = CommunicationCosts(tables.cluster, tables.mesh)
        seconds, saved = np.zeros(len(part.kinds)), np.zeros(len(part.kinds))
        for node, op in enumerate(part.graph.ops):
            for step in self._strategy(node).collectives:
                is_late = node in late and step.kind != PERMUTE
                share = owner.overlap_share_of(step.kind) * is_late
                share = share or in_pieces_share(owner, op, step)
                if not share and not is_late:
                    continue
                alone = links.seconds((step,))
                each = links.combined_seconds(step) if is_late else alone
                seconds[op.group] += share * op.repeat * each
                saved[op.group] += op.repeat * (alone - each)
        return seconds, saved

    def _seconds_of(self, node: int) -> float:
        """Of an operation, without reshardings."""
        if node >= len(self.facts.part.graph.ops):
            return 0.0
        return float(self._strategies_of(node).seconds[self.choice[node]])

    def live_bytes(self, copies: bool, in_flight: int = 1) -> np.ndarray:
        """Bytes that a device holds while each operation runs, with or without the copies of
        operands: int64 `[positions]`."""
        # Differences from position to position, summed up at the end: a span costs two additions,
        # however long it is.
        change = np.zeros(len(self.facts.execution.order) + 1, dtype=np.int64)
        held = [(self.facts.held, 1)]
        held += [(self.facts.held_further, in_flight - 1)] if in_flight > 1 else []
        spans = [(*self._spans(each), count * self._bytes_held(each)) for each, count in held]
        if copies:
            rows = [(copy.start, copy.stop, copy.bytes) for copy in self._copies]
            start, stop, size = np.array(rows, dtype=np.int64).reshape(-1, 3).T
            spans.append((start, stop, size))
        for start, stop, size in spans:
            np.add.at(change, start, size)
            np.subtract.at(change, stop, size)
        return np.cumsum(change[:-1])

    def copied_at_peak(self, in_flight: int = 1) -> frozenset[int]:
        """The tensors of which copies in other shardings lie where a device holds most."""
        live_bytes = self.live_bytes(copies=True, in_flight=in_flight)
        peak = int(live_bytes.argmax()) if live_bytes.size else 0
        return frozenset(
            copy.tensor
            for copy in self._copies
            if copy.sharding is not None and copy.start <= peak < copy.stop
        )

    def sum_bytes(self, tensors: Iterable[int]) -> int:
        """Bytes of a device of some tensors."""
        return sum(map(self.bytes_of, sorted(tensors)))

    def further_bytes(self) -> int:
        """Bytes of a device that are held once more for every further microbatch in flight."""
        held = self.facts.held_further
        counts = np.array([live.count for live in held.lives], dtype=np.int64)
        return int(counts @ self._bytes_held(held))

    def _spans(self, held: Held) -> tuple[np.ndarray, np.ndarray]:
        """The positions [start, stop) of every lifetime."""
        start, stop = held.start, held.stop
        if held.handed_on:
            start, stop = start.copy(), stop.copy()
        for number in held.handed_on:
            start[number], stop[number] = held.lives[number].span(self._sharding_of)
        return start, stop

    def _bytes_held(self, held: Held) -> np.ndarray:
        """Bytes of a device of the tensor of every lifetime. Nodes of a pair shard equal tensors
        alike, so that one of each is looked at."""
        rows = np.stack([self._pairs[1][held.node], held.place, held.kind])
        keys = np.ravel_multi_index(tuple(rows), tuple(rows.max(axis=1, initial=0) + 1))
        first, row = np.unique(keys, return_index=True, return_inverse=True)[1:]
        sizes = [self.bytes_of(held.lives[number].tensor) for number in first.tolist()]
        return np.array(sizes, dtype=np.int64)[row]

    def _sharding_of(self, tensor: int) -> Sharding:
        node, k = self.facts.place[tensor]
        return self._shardings[self._pair_of[node]][k]

    def bytes_of(self, tensor: int) -> int:
        """Bytes of a device."""
        if tensor in self.facts.first_readers:
            node, operand = self.facts.first_readers[tensor]
            sharding = self._strategy(node).operands[operand]
        else:
            node, k = self.facts.place[tensor]
            sharding = self._shardings[self._pair_of[node]][k]
        value = self.facts.part.graph.tensors[tensor]
        return sharding.local_elements(self.tables.mesh, value.shape) * value.itemsize

    @cached_property
    def _pairs(self) -> tuple[list[int], np.ndarray]:
        """The first node of each pair of a kind and a choice, and the pair of each node."""
        choice = np.array(self.choice, dtype=np.int64)
        keys = self.facts.kinds * (choice.max(initial=0) + 1) + choice
        first, pair = np.unique(keys, return_index=True, return_inverse=True)[1:]
        return first.tolist(), pair

    @cached_property
    def _pair_of(self) -> list[int]:
        return self._pairs[1].tolist()

    @cached_property
    def _strategies(self) -> tuple[Strategy | Sharding, ...]:
        """Of each pair: the strategy of an operation, or the sharding of an input."""
        inputs = self.facts.singles.inputs
        graph, strategies = self.facts.part.graph, list[Strategy | Sharding]()
        for node in self._pairs[0]:
            if node < len(graph.ops):
                strategies.append(self._strategies_of(node).strategies[self.choice[node]])
            else:
                column = self.tables.choices(graph.tensors[inputs[node - len(graph.ops)]].shape)
                strategies.append(column.shardings[self.choice[node]])
        return tuple(strategies)

    def _strategies_of(self, op: int) -> OpStrategies:
        """Operations of a kind have the same."""
        kind = int(self.facts.kinds[op])
        if kind not in self._of_kind:
            part = self.facts.part
            self._of_kind[kind] = self.tables.of(
                part.graph.ops[op], part.graph.tensors, part.linear[op], part.kernels.accesses[op]
            )
        return self._of_kind[kind]

    @cached_property
    def _of_kind(self) -> dict[int, OpStrategies]:
        return {}

    def _strategy(self, op: int) -> Strategy:
        strategy = self._strategies[self._pair_of[op]]
        assert isinstance(strategy, Strategy)
        return strategy

    @cached_property
    def _shardings(self) -> tuple[tuple[Sharding, ...], ...]:
        """Of each pair, of all its results."""
        return tuple(
            (each,) if isinstance(each, Sharding) else each.results for each in self._strategies
        )

    @cached_property
    def _resharding(self) -> ShardedOps:
        """The operations that need more than their values themselves. Which copies are shared
        within a memory budget is decided where that is kept."""
        part = self.facts.part
        strategies = {op: self._strategy(op) for op in sorted(self._resharding_ops())}
        sharded = ShardedOps(
            graph=part.graph,
            mesh=self.tables.mesh,
            shardings=self._touched(strategies),
            strategies=strategies,
            cheap_to_clone=part.free,
            fused=part.kernels.fusion.fused,
            fresh=frozenset(),
        )
        # In which order they run takes long to find, and matters to what is dropped after use.
        if not self.transient:
            return sharded
        order = sorted(strategies, key=self.facts.position.__getitem__)
        return replace(sharded, fresh=copies_after_others(sharded, order, self.transient))

    def _touched(self, ops: Iterable[int]) -> dict[int, Sharding]:
        """How what operations read and make is sharded."""
        graph = self.facts.part.graph
        read = dict.fromkeys(
            t for op in ops for t in graph.ops[op].operands if t not in self.facts.part.free
        )
        made = dict.fromkeys(tensor for op in ops for tensor in graph.ops[op].results)
        # What is read may be another value that was handed on.
        first = (t for t in graph.handed_on.values() if t not in self.facts.part.free)
        return {tensor: self._sharding_of(tensor) for tensor in (*read, *made, *first)}

    @cached_property
    def _copies(self) -> tuple[TensorCopy, ...]:
        positions = self.facts.position
        order = sorted((int(positions[op]), op) for op in self._resharding.strategies)
        return find_copies(self._resharding, order)

    def _resharding_ops(self) -> set[int]:
        """Operations that want an operand in another sharding than its own, or scatter a result."""
        reads, pair = self.facts.singles.reads, self._pairs[1]
        rows = np.stack([pair[reads.source], reads.result, pair[reads.target], reads.operand])
        # Reads between the same two pairs agree on whether they reshard: one of each is compared,
        # as comparing shardings in Python is what takes time here.
        keys = np.ravel_multi_index(tuple(rows), tuple(rows.max(axis=1, initial=0) + 1))
        first, row = np.unique(keys, return_index=True, return_inverse=True)[1:]
        differs = np.zeros(len(first), dtype=bool)
        for number, (source, k, target, operand) in enumerate(rows[:, first].T.tolist()):
            reader = self._strategies[target]
            assert isinstance(reader, Strategy)
            differs[number] = self._shardings[source][k] != reader.operands[operand]
        scatters = [
            isinstance(each, Strategy) and each.unscattered != each.results
            for each in self._strategies
        ]
        return {
            *reads.target[differs[row]].tolist(),
            *np.flatnonzero(np.array(scatters)[pair]).tolist(),
        }
