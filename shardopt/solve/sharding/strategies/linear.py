"""Which values may stay unreduced: sums that only operations linear in them read.

A contraction over a split factor leaves a term of its result on every device. Operations that are
linear in the value may work on the terms (gradients are added up over microbatches, the gradients
of three projections of one value are added), and one collective at the end takes the sum.
`find_linear` says for each operation which operands may be unreduced together, and whether its
result may be.

A value may stay unreduced if its producer can make terms of it and every reader is linear
in it. What leaves the graph never does, nor what is made or read inside of a loop or branch. Of
such values only those are kept whose *region* (what linear operations connect of them) can
gain: two of them are joined, one is carried from microbatch to microbatch, one is read less often
than it is made, or one shrinks before it is needed. All others would be reduced where they are made
anyway."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardopt.graph.linear_ops import leaves_terms, linear_modes, plain_zeros
from shardopt.graph.op_graph import Op, OpGraph

Tied = Iterable[tuple[int, int]]
Modes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Linear:
    """How an operation deals with unreduced values.

    Each of `modes` is a set of operand positions that may be unreduced along one axis, all
    together; the operation is then linear in them. An empty mode makes terms out of nothing: zeros.
    `unreduced`: the result may be unreduced. `contracts`: the operation makes terms along the axes
    of contracted factors, that it may leave so or add up in several steps. `sums`: the sum of
    unreduced operands may be taken right behind the operation; elsewhere its readers take it, or it
    could have been taken before."""

    modes: Modes = ()
    unreduced: bool = False
    contracts: bool = False
    sums: bool = False

    def or_as(self, other: Linear) -> Linear:
        """What either allows."""
        return Linear(
            tuple(dict.fromkeys((*self.modes, *other.modes))),
            self.unreduced or other.unreduced,
            self.contracts or other.contracts,
            self.sums or other.sums,
        )


REDUCED = Linear()
_CONTRACTS = Linear(contracts=True)


def find_linear(graph: OpGraph, tied: Tied = (), reduced: Iterable[int] = ()) -> tuple[Linear, ...]:
    """For each operation of `graph`. The tensors of a `tied` pair end with equal shardings;
    `reduced` are never unreduced (nor are inputs and outputs of the graph)."""
    return _Analysis(graph, tuple((a, b) for a, b in tied if a != b), frozenset(reduced)).run()


class _Analysis:
    def __init__(
        self, graph: OpGraph, tied: tuple[tuple[int, int], ...], reduced: frozenset[int]
    ) -> None:
        self.graph = graph
        self.tied = tied
        self.carried = frozenset(tensor for pair in tied for tensor in pair)
        inside = {tensor for op in graph.ops if op.block for tensor in (*op.operands, *op.results)}
        self.reduced = reduced | set(graph.outputs) | set(graph.inputs) | inside
        self.producers = graph.producers()
        self.consumers = graph.consumers()
        self.zeros = plain_zeros(graph)
        # A carried value has zeros only before the first iteration.
        self.always_zero = self.zeros - self.carried
        # The linear modes of each operation whose operands are all unreduced, or zeros that the
        # operation can make for itself.
        self.modes = [linear_modes(op, graph.tensors, self.always_zero) for op in graph.ops]
        self.makes_terms = [leaves_terms(op, self.always_zero) for op in graph.ops]
        self.unreduced: set[int] = set()

    def run(self) -> tuple[Linear, ...]:
        self._shrink_to_fixpoint()
        self.unreduced &= self._worthwhile()
        # A region is dropped as a whole, so what is left still fits together.
        return tuple(map(self._linear, self.graph.ops, self.modes, self.makes_terms))

    def _linear(self, op: Op, modes: Modes, makes_terms: bool) -> Linear:
        contracts = not op.block and makes_terms
        is_unreduced = len(op.results) == 1 and op.results[0] in self.unreduced
        if not is_unreduced and self.unreduced.isdisjoint(op.operands):
            return _CONTRACTS if contracts else REDUCED
        modes = tuple(
            [mode for mode in modes if any(op.operands[k] in self.unreduced for k in mode)]
        )
        if is_unreduced and op.results[0] in self.zeros:
            modes = ((), *modes)
        return Linear(modes, is_unreduced, contracts, any(self._ends(op, mode) for mode in modes))

    def _ends(self, op: Op, mode: tuple[int, ...]) -> bool:
        """Whether this is a place to take a sum: the last one, or one where it has become
        cheaper."""
        if op.results[0] not in self.unreduced:
            return True
        if op.results[0] in self.carried:  # unreduced before and after, or not at all
            return False
        inside = [op.operands[k] for k in mode if op.operands[k] in self.unreduced]
        return self._saves(op, inside)

    def _shrink_to_fixpoint(self) -> None:
        """The greatest set of values that all fit together: start with every candidate, drop what
        cannot be unreduced, and look again at what a dropped value touches."""
        ops = self.graph.ops
        whole = {
            t for op, modes in zip(ops, self.modes, strict=True) if not modes for t in op.operands
        }
        self.unreduced = {
            result
            for op in ops
            if len(op.results) == 1
            for result in op.results
            if result not in whole
            and result not in self.reduced
            and result not in self.always_zero
            and self.graph.tensors[result].dtype != "i1"
        }
        partners: dict[int, list[int]] = {}
        for first, second in self.tied:
            partners.setdefault(first, []).append(second)
            partners.setdefault(second, []).append(first)
        self._limit_modes(range(len(ops)))
        doubtful = set(self.unreduced)
        while doubtful:
            dropped = [t for t in doubtful if not self._fits(t, partners.get(t, ()))]
            self.unreduced.difference_update(dropped)
            touched = {op for tensor in dropped for op in self.consumers[tensor]}
            self._limit_modes(touched)
            doubtful = {t for k in touched for t in (*ops[k].operands, *ops[k].results)}
            doubtful.update(other for tensor in dropped for other in partners.get(tensor, ()))
            doubtful &= self.unreduced

    def _fits(self, tensor: int, partners: Sequence[int]) -> bool:
        bound = all(other in self.unreduced for other in partners)
        return bound and self._is_made(tensor) and self._is_read_linearly(tensor)

    def _limit_modes(self, ops: Iterable[int]) -> None:
        """Drop the modes of some operations that a value takes part in which is not unreduced."""
        for index in ops:
            if modes := self.modes[index]:
                op = self.graph.ops[index]
                self.modes[index] = tuple([mode for mode in modes if self._is_possible(op, mode)])

    def _is_possible(self, op: Op, mode: tuple[int, ...]) -> bool:
        for k in mode:
            tensor = op.operands[k]
            if tensor not in self.unreduced and not self._makes_zero(op, tensor):
                return False
        return True

    def _is_made(self, tensor: int) -> bool:
        producer = self.producers[tensor]
        op = self.graph.ops[producer]
        if tensor in self.zeros or self.makes_terms[producer]:
            return True
        return any(op.operands[k] in self.unreduced for mode in self.modes[producer] for k in mode)

    def _is_read_linearly(self, tensor: int) -> bool:
        readers = self.consumers[tensor]
        return bool(readers) and all(self._reads_linearly(reader, tensor) for reader in readers)

    def _reads_linearly(self, reader: int, tensor: int) -> bool:
        modes = self.modes[reader]
        if not modes:
            return False
        operands = self.graph.ops[reader].operands
        place = operands.index(tensor)
        if tensor in operands[place + 1 :]:
            places = {k for k, t in enumerate(operands) if t == tensor}
            return any(places.issubset(mode) for mode in modes)
        return any(place in mode for mode in modes)

    def _makes_zero(self, op: Op, tensor: int) -> bool:
        if tensor not in self.always_zero or self.producers[tensor] < 0:
            return False
        made = self.graph.ops[self.producers[tensor]]
        return made.scope == op.scope and made.name in ("constant", "broadcast_in_dim")

    def _worthwhile(self) -> set[int]:
        """The unreduced values of regions that can gain."""
        region = _Regions()
        gains: list[int] = []
        for first, second in self.tied:
            if first in self.unreduced and second in self.unreduced:
                region.join(first, second)
                if self.graph.ops[self.producers[second]].repeat > 1:
                    gains.append(first)
        for op, modes in zip(self.graph.ops, self.modes, strict=True):
            if self.unreduced.isdisjoint(op.operands):
                continue
            for mode in modes:
                inside = [op.operands[k] for k in mode if op.operands[k] in self.unreduced]
                linked = [*inside, *(result for result in op.results if result in self.unreduced)]
                for tensor in linked[1:]:
                    region.join(linked[0], tensor)
                if self._saves(op, inside):
                    gains.append(inside[0])
        winners = {region.of(tensor) for tensor in gains}
        return {tensor for tensor in self.unreduced if region.of(tensor) in winners}

    def _saves(self, op: Op, inside: Sequence[int]) -> bool:
        """Whether it is cheaper to take the sum behind `op` than that of each of its unreduced
        operands before it."""
        if not inside or len(set(inside) - self.carried) > 1:
            return bool(inside)
        made, tensors = self.graph.ops[self.producers[inside[0]]], self.graph.tensors
        return (
            op.repeat < made.repeat
            or tensors[op.results[0]].size_bytes < tensors[inside[0]].size_bytes
        )


class _Regions:
    """Disjoint sets of tensors."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}

    def of(self, tensor: int) -> int:
        path = []
        while (parent := self._parent.get(tensor, tensor)) != tensor:
            path.append(tensor)
            tensor = parent
        self._parent.update(dict.fromkeys(path, tensor))
        return tensor

    def join(self, first: int, second: int) -> None:
        self._parent[self.of(first)] = self.of(second)
