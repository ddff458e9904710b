"""Attention as one kernel forward and one backward, which never write the scores.

    %s = dot_general %q, %k          forward: reads %q, %k and %v, writes %o and the sums of rows
    %e = exponential (%s - max %s)
    %p = %e / sum %e                 backward: reads these and %do, makes %s and %p again, and
    %o = dot_general %p, %v          writes the gradients of %q, %k and %v

That is what FlashAttention (arXiv 2205.14135, algorithms 1 and 4) and cuDNN do where a framework
calls them. XLA does so for nothing that it compiles by itself, so it is priced only where a cluster
file gives the rates of such kernels (`shardopt.hardware.cluster.AttentionRate`).

What belongs together is found by the flow of data alone: all that works on values as large as the
scores around an exponential, between products that have a batch. Cross entropy, whose logits come
from a product without a batch, is no attention. Where the scores leave their fragment, such as
residuals that a pipeline keeps for the backward pass, they have to be written, and nothing is
fused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from shardopt.graph.attention_use import AttentionUse
from shardopt.graph.op_graph import FactorRule, Op, OpGraph

_PRODUCT = "dot_general"
# Of which the predicate of a triangular mask is made: one comparison of positions.
_OF_POSITIONS = frozenset(("iota", "compare", "broadcast_in_dim", "convert", "reshape", "constant"))


@dataclass(frozen=True)
class AttentionKernel:
    """Computes the operations `ops`, some of which another kernel computes too, and ends with
    operation `end`."""

    end: int
    ops: frozenset[int]
    use: AttentionUse


@dataclass(frozen=True)
class FusedAttention:
    """`scores` are the values that no kernel writes; `home[i]` is the operation that ends the
    kernel which writes what operation i makes, for operations of the kernels."""

    kernels: tuple[AttentionKernel, ...]
    scores: frozenset[int]
    home: dict[int, int]

    def ends(self, op: int) -> set[int]:
        """The kernels that compute an operation, by the operations that end them."""
        return {kernel.end for kernel in self.kernels if op in kernel.ops}


def find_attention(graph: OpGraph, cheap: Set[str]) -> tuple[FusedAttention, ...]:
    """One for each place of attention whose scores need not be written. `cheap` are the names of
    operations that a loop over elements computes on the way."""
    places: list[FusedAttention] = []
    taken: set[int] = set()
    for index, op in enumerate(graph.ops):
        if op.name != "exponential" or index in taken:
            continue
        island = _Island(graph, cheap, op)
        if island.grow(op.results[0]) and island.is_attention():
            island.close()
            places.append(island.fused())
            taken |= island.ops
    return tuple(places)


def attention_ops(graph: OpGraph, cheap: Set[str]) -> tuple[frozenset[int], ...]:
    """The operations of each place of attention, whether or not its scores are written."""
    places: list[frozenset[int]] = []
    taken: set[int] = set()
    for index, op in enumerate(graph.ops):
        if op.name != "exponential" or index in taken:
            continue
        island = _Island(graph, cheap, op, may_write=True)
        island.grow(op.results[0])
        if island.is_attention():
            island.close()
            places.append(frozenset(island.ops))
            taken |= island.ops
    return tuple(places)


class _Island:
    """Operations on values that have as many elements as the scores, in one scope."""

    def __init__(self, graph: OpGraph, cheap: Set[str], seed: Op, may_write: bool = False) -> None:
        self.graph, self.cheap, self.scope = graph, cheap, seed.scope
        self.may_write = may_write
        self.producers, self.consumers = graph.producers(), graph.consumers()
        self.size = self._elements(seed.results[0])
        self.ops: set[int] = set()
        self.scores: set[int] = set()

    def grow(self, seed: int) -> bool:
        """Take in what makes and reads the scores; False if one of them has to be written."""
        kept, pending = {*self.graph.outputs, *self.graph.fenced}, [seed]
        while pending:
            tensor = pending.pop()
            if tensor in self.scores or not self._follows_from_product(tensor):
                continue
            if tensor in kept and not self.may_write:
                return False
            self.scores.add(tensor)
            maker = self.producers[tensor]
            self.ops.add(maker)
            if self.graph.ops[maker].name != _PRODUCT:
                pending += self._like_scores(self.graph.ops[maker].operands)
            for reader in self.consumers[tensor]:
                op = self.graph.ops[reader]
                if self._takes(op):
                    self.ops.add(reader)
                    pending += op.results if op.name in self.cheap else ()
                elif not self.may_write:
                    return False
        return True

    def is_attention(self) -> bool:
        """Whether a softmax lies between products with a batch."""
        products = self._named(_PRODUCT)
        return (
            bool(self.makers_of_scores(self.ops))
            and any(self._reads_scores(op) for op in products)
            and bool(self._named("reduce"))
            and all(_has_batch(self.graph.ops[op].rule) for op in products)
        )

    def close(self) -> None:
        """Take in what lies between sums of rows and their use, such as a guard against infinities:
        a kernel cannot wait for itself."""
        behind, pending = set[int](), [t for op in self.ops for t in self._small_results(op)]
        while pending:
            for reader in self.consumers[pending.pop()]:
                op = self.graph.ops[reader]
                if reader in self.ops or reader in behind or op.scope != self.scope:
                    continue
                if op.name in self.cheap or op.name == "reduce":
                    behind.add(reader)
                    pending += op.results
        pending = [t for op in self.ops for t in self.graph.ops[op].operands]
        while pending:
            maker = self.producers[pending.pop()]
            if maker in behind:
                behind.remove(maker)
                self.ops.add(maker)
                self.scores.update(filter(self._stays_inside, self.graph.ops[maker].results))
                pending += self.graph.ops[maker].operands

    def fused(self) -> FusedAttention:
        """A kernel for each turn: what depends on a result of one, by operations that belong to
        none, is computed in a later one."""
        turns = self._turns()
        kernels, home = [], dict[int, int]()
        for turn in sorted(set(turns.values())):
            first_made = {op for op, its in turns.items() if its == turn}
            end = max(first_made)
            home |= dict.fromkeys(first_made, end)
            ops = first_made | self._made_again(first_made, turns, turn)
            kernels.append(AttentionKernel(end, frozenset(ops), self._use(ops)))
        return FusedAttention(tuple(kernels), frozenset(self.scores), home)

    def _turns(self) -> dict[int, int]:
        level: dict[int, int] = {}
        turns: dict[int, int] = {}
        for index in range(min(self.ops), max(self.ops) + 1):
            op = self.graph.ops[index]
            if index in self.ops:
                turn = turns[index] = max((level.get(t, 0) for t in op.operands), default=0)
            else:
                turn = max(
                    (level.get(t, 0) + (self.producers[t] in self.ops) for t in op.operands),
                    default=0,
                )
            level |= dict.fromkeys(op.results, turn)
        for index in sorted(turns, reverse=True):  # what only later turns read, they compute
            readers = {r for t in self.graph.ops[index].results for r in self.consumers[t]}
            kept = set(self.graph.ops[index].results) & set(self.graph.outputs)
            if readers and not kept and readers <= self.ops:
                turns[index] = min(turns[reader] for reader in readers)
        return turns

    def _made_again(self, ops: Set[int], turns: dict[int, int], turn: int) -> set[int]:
        """What earlier kernels made and did not write. Sums of rows are written."""
        again: set[int] = set()
        pending = [t for op in ops for t in self.graph.ops[op].operands]
        while pending:
            tensor = pending.pop()
            maker = self.producers[tensor]
            if tensor in self.scores and turns[maker] < turn and maker not in again:
                again.add(maker)
                pending += self.graph.ops[maker].operands
        return again

    def _use(self, ops: Set[int]) -> AttentionUse:
        sums = [op for op in self.ops if self.graph.ops[op].name == "reduce"]
        rows = max(self._elements(self.graph.ops[op].results[0]) for op in sums)
        products = self.makers_of_scores(self.ops)
        depth = max(self.graph.ops[op].flops for op in products) / (2 * self.size)
        return AttentionUse(
            head=round(depth),
            keys=self.size // rows,
            triangular=any(self._masks_triangle(op) for op in self._named("select")),
            backward=len(self.makers_of_scores(ops)) > 1,
        )

    def makers_of_scores(self, ops: Iterable[int]) -> list[int]:
        return [
            op
            for op in ops
            if self.graph.ops[op].name == _PRODUCT and self.graph.ops[op].results[0] in self.scores
        ]

    def _masks_triangle(self, select: int) -> bool:
        """Whether what it selects by follows from one comparison of row and column."""
        names: list[str] = []
        square = False
        pending = [self.graph.ops[select].operands[0]]
        while pending:
            maker = self.producers[pending.pop()]
            if maker < 0 or self.graph.ops[maker].name not in _OF_POSITIONS:
                return False
            op = self.graph.ops[maker]
            names.append(op.name)
            shape = self.graph.tensors[op.results[0]].shape
            square |= op.name == "compare" and len(shape) > 1 and shape[-1] == shape[-2]
            pending += op.operands
        return square and names.count("compare") == 1 and "iota" in names

    def _takes(self, op: Op) -> bool:
        """Whether a reader of scores can be part of a kernel."""
        if op.scope != self.scope:
            return False
        if op.name in (_PRODUCT, "reduce"):
            return True
        return op.name in self.cheap and all(map(self._is_like_scores, op.results))

    def _follows_from_product(self, tensor: int) -> bool:
        """Masks, which many places of attention share, follow from none."""
        seen, pending = set[int](), [tensor]
        while pending:
            tensor = pending.pop()
            if tensor in seen or not self._is_made_here(tensor):
                continue
            seen.add(tensor)
            maker = self.graph.ops[self.producers[tensor]]
            if maker.name == _PRODUCT or tensor in self.scores:
                return True
            pending += self._like_scores(maker.operands)
        return False

    def _is_made_here(self, tensor: int) -> bool:
        maker = self.producers[tensor]
        if maker < 0:
            return False
        op = self.graph.ops[maker]
        return op.scope == self.scope and (op.name == _PRODUCT or op.name in self.cheap)

    def _named(self, name: str) -> list[int]:
        return sorted(op for op in self.ops if self.graph.ops[op].name == name)

    def _reads_scores(self, op: int) -> bool:
        return any(tensor in self.scores for tensor in self.graph.ops[op].operands)

    def _like_scores(self, tensors: Sequence[int]) -> Iterator[int]:
        return filter(self._is_like_scores, tensors)

    def _is_like_scores(self, tensor: int) -> bool:
        return self._elements(tensor) == self.size

    def _stays_inside(self, tensor: int) -> bool:
        """Whether a value as large as the scores is read here alone."""
        kept = tensor in self.graph.outputs or tensor in self.graph.fenced
        return not kept and self._is_like_scores(tensor) and self.ops >= {*self.consumers[tensor]}

    def _small_results(self, op: int) -> Iterator[int]:
        if self.graph.ops[op].name == "reduce":
            yield from self.graph.ops[op].results

    def _elements(self, tensor: int) -> int:
        return self.graph.tensors[tensor].elements


def _has_batch(rule: FactorRule | None) -> bool:
    if rule is None:
        return False
    sides = [{f for dim in dims for f in dim} for dims in (*rule.operands, *rule.results)]
    return bool(set.intersection(*sides))
