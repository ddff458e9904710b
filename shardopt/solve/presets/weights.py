"""How weights get to the products that use them: through transposes, reshapes and casts, dimension
by dimension."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cached_property

from shardopt.graph.op_graph import Op, OpGraph
from shardopt.solve.presets.flow import BatchFlow
from shardopt.solve.presets.slots import leading_factor
from shardopt.solve.sharding.strategies.factors import shardable_factors

_PRODUCTS = frozenset({"dot_general", "convolution"})
# What leaves the entries of a tensor what they are, in another shape or type.
_RESHAPING = frozenset({"broadcast_in_dim", "convert", "reshape", "transpose"})


@dataclass(frozen=True, eq=False)
class WeightUses:
    """`derived[t]` says whether a tensor is a weight or made of weights and constants alone."""

    graph: OpGraph
    flow: BatchFlow
    derived: tuple[bool, ...]

    @staticmethod
    def of(graph: OpGraph, flow: BatchFlow) -> WeightUses:
        return WeightUses(graph, flow, made_of(graph, flow, flow.weights))

    @cached_property
    def producers(self) -> tuple[int, ...]:
        return self.graph.producers()

    def product(self, op: Op) -> int | None:
        """The position of the weight in a product (or gather) with an activation; None for any
        other operation."""
        if op.rule is None or (op.name != "gather" and op.name not in _PRODUCTS):
            return None
        weights = [k for k, tensor in enumerate(op.operands[:2]) if self.derived[tensor]]
        others = [tensor for tensor in op.operands[:2] if self.flow.depends[tensor]]
        return weights[0] if len(weights) == 1 and others else None

    @cached_property
    def one_hot(self) -> frozenset[int]:
        """Numbers that say where a comparison holds, such as one-hot rows: their product with a
        table looks up its rows."""
        found = set[int]()
        for op in self.graph.ops:
            if op.name == "compare" or (op.name in _RESHAPING and op.operands[0] in found):
                found.update(op.results)
        return frozenset(found)

    def looks_up(self, op: Op) -> bool:
        """Whether an operation takes rows of a table that is a weight."""
        position = self.product(op)
        if position is None:
            return False
        return op.name == "gather" or op.operands[1 - position] in self.one_hot

    @cached_property
    def vocabulary(self) -> frozenset[int]:
        """The tables that are looked up with the most rows: words, rather than positions or
        segments."""
        tables = dict(self._table(op) for op in self.graph.ops if self.looks_up(op))
        return frozenset(tensor for tensor, rows in tables.items() if rows == max(tables.values()))

    def _table(self, op: Op) -> tuple[int, int]:
        """What an operation looks up, and how many rows it has."""
        position, rule = self.product(op), op.rule
        assert position is not None and rule is not None
        tensor = op.operands[position]
        dims = zip(self.graph.tensors[tensor].shape, rule.operands[position], strict=True)
        if op.name == "gather":
            return tensor, self.graph.tensors[tensor].shape[0]
        return tensor, max((size for size, led in dims if rule.reduction & {*led}), default=0)

    def origins(self, tensor: int, dim: int) -> Iterator[tuple[int, int]]:
        """The weights, and their dimensions, that become dimension `dim` of a value: each once."""
        pending, seen = [(tensor, dim)], {(tensor, dim)}
        while pending:
            each = pending.pop()
            if self.producers[each[0]] < 0:
                if each[0] in self.flow.weights:
                    yield each
                continue
            sources = [at for at in dict.fromkeys(self._sources(*each)) if at not in seen]
            seen.update(sources)
            pending += reversed(sources)

    def _sources(self, tensor: int, dim: int) -> Iterator[tuple[int, int]]:
        """The operands, and their dimensions, that become a dimension of what an operation makes
        of weights."""
        op = self.graph.ops[self.producers[tensor]]
        if op.rule is None or self.flow.depends[tensor]:
            return
        factor = leading_factor(op.rule.results[op.results.index(tensor)][dim], op.rule.sizes)
        if factor not in set(shardable_factors(op)):
            return
        for operand, mapping in zip(op.operands, op.rule.operands, strict=False):
            for place, led in enumerate(mapping):
                if leading_factor(led, op.rule.sizes) == factor:
                    yield operand, place
                    break

    def chain(self, tensor: int) -> set[int]:
        """The operations that make a value out of weights."""
        ops: set[int] = set()
        pending = [tensor]
        while pending:
            producer = self.producers[pending.pop()]
            if (
                producer >= 0
                and producer not in ops
                and not self.flow.depends[self.graph.ops[producer].results[0]]
            ):
                ops.add(producer)
                pending += self.graph.ops[producer].operands
        return ops


def made_of(graph: OpGraph, flow: BatchFlow, sources: Set[int]) -> tuple[bool, ...]:
    """For each tensor whether it is one of the sources, or made of them and constants but not of
    the batch."""
    is_made = [tensor in sources for tensor in range(len(graph.tensors))]
    for op in graph.ops:
        for result in op.results:
            is_made[result] = not flow.depends[result] and any(
                is_made[operand] for operand in op.operands
            )
    return tuple(is_made)


def dim_of(mapping: tuple[tuple[int, ...], ...], factor: int) -> int | None:
    """The dimension that a factor is part of."""
    return next((dim for dim, factors in enumerate(mapping) if factor in factors), None)
