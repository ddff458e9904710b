"""Which dimensions of attention are rows (queries), keys, and heads: what presets that split the
sequence know of it.

    %s[b, n, i, j] = dot_general %q[b, i, n, d], %k[b, j, n, d]
    %p = exponential (%s - maximum over j of %s) / …        j: keys, the dimension of the softmax
    %o[b, i, n, d] = dot_general %p, %v[b, j, n, d]         i: rows, which queries alone bring
                                                            n: heads, which all bring

Starting from the dimension over which the softmax runs, the dimensions of all other scores,
backward ones too, follow from the factors of the rules."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Literal

from shardopt.graph.op_graph import FactorRule, Op, OpGraph
from shardopt.solve.presets.slots import leading_factor
from shardopt.solve.presets.weights import dim_of
from shardopt.solve.sharding.kernels.attention import attention_ops
from shardopt.solve.sharding.kernels.fusion import CHEAP

Role = Literal["rows", "keys", "heads"]
_PRODUCT = "dot_general"


@dataclass(frozen=True)
class Scores:
    """The product that makes the scores: of its factors `keys`, those that only queries bring, and
    those that both bring. `query` and `key` are its operands."""

    op: Op
    query: int
    key: int
    keys: int
    rows: tuple[int, ...]
    both: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        assert self.op.rule is not None
        return self.op.rule.sizes

    def dim(self, operand: int, factor: int) -> tuple[int, int]:
        """The tensor that is an operand, and its dimension with a factor."""
        assert self.op.rule is not None
        dim = dim_of(self.op.rule.operands[operand], factor)
        assert dim is not None
        return self.op.operands[operand], dim


class AttentionDims:
    """One place of attention; `first` is None where no product with scores of its own is found."""

    def __init__(self, graph: OpGraph, ops: Set[int]) -> None:
        self.graph, self.ops = graph, ops
        self._roles: dict[int, dict[int, Role]] = {}
        self.first = self._first() if self._start() else None

    def name(self, rows: int, heads: int | None) -> None:
        """Say which factors of the first product are rows and heads."""
        assert self.first is not None and self.first.op.rule is not None
        result, mapping = self.first.op.results[0], self.first.op.rule.results[0]
        roles = self._roles[result]
        roles[_dim(mapping, rows)] = "rows"
        if heads is not None:
            roles[_dim(mapping, heads)] = "heads"
        self._spread()

    def factor(self, index: int, role: Role) -> int | None:
        """The factor of an operation that has a role."""
        op = self.graph.ops[index]
        if op.rule is None:
            return None
        return next((f for f, its in self._factors(op, op.rule).items() if its == role), None)

    def _start(self) -> bool:
        """The first reduction of the place runs over the keys."""
        for index in sorted(self.ops):
            op = self.graph.ops[index]
            if op.name != "reduce" or op.rule is None:
                continue
            for tensor, mapping in zip(op.operands, op.rule.operands, strict=False):
                reduced = [d for d, fs in enumerate(mapping) if set(fs) & op.rule.reduction]
                if reduced:
                    self._roles[tensor] = {reduced[0]: "keys"}
                    self._spread()
                    return True
        return False

    def _first(self) -> Scores | None:
        for index in sorted(self.ops):
            op = self.graph.ops[index]
            if op.name != _PRODUCT or op.rule is None or op.results[0] not in self._roles:
                continue
            keys = self.factor(index, "keys")
            sides = [{f for dim in mapping for f in dim} for mapping in op.rule.operands]
            made = [f for dim in op.rule.results[0] for f in dim if op.rule.sizes[f] > 1]
            if keys is None or keys not in made or (keys in sides[0]) == (keys in sides[1]):
                continue
            key = 0 if keys in sides[0] else 1
            rows = tuple(f for f in made if f not in sides[key])
            both = tuple(f for f in made if f in sides[0] & sides[1])
            return Scores(op, 1 - key, key, keys, rows, both)
        return None

    def _spread(self) -> None:
        """Until no tensor learns of another dimension."""
        changed = True
        while changed:
            visits = [self._visit(self.graph.ops[index]) for index in sorted(self.ops)]
            changed = any(visits)

    def _visit(self, op: Op) -> bool:
        if op.rule is None:
            return False
        roles, changed = self._factors(op, op.rule), False
        for tensor, mapping in self._sides(op, op.rule):
            known = self._roles.setdefault(tensor, {})
            for dim, factors in enumerate(mapping):
                role = roles.get(leading_factor(factors, op.rule.sizes))
                if role is not None and role not in known.values() and dim not in known:
                    known[dim] = role
                    changed = True
        return changed

    def _factors(self, op: Op, rule: FactorRule) -> dict[int | None, Role]:
        return {
            leading_factor(mapping[dim], rule.sizes): role
            for tensor, mapping in self._sides(op, rule)
            for dim, role in self._roles.get(tensor, {}).items()
        }

    def _sides(self, op: Op, rule: FactorRule) -> Iterator[tuple[int, tuple[tuple[int, ...], ...]]]:
        """The values of an operation that can be scores, or sums of their rows: an operand of a
        product may be queries in one and keys in another."""
        makers = self.graph.producers()
        for tensor, mapping in zip(op.operands, rule.operands, strict=False):
            if makers[tensor] in self.ops or tensor in self._roles:
                yield tensor, mapping
        yield from zip(op.results, rule.results, strict=True)


def find_attention_dims(graph: OpGraph) -> tuple[AttentionDims, ...]:
    """All places of attention whose dimensions are known."""
    places = (AttentionDims(graph, ops) for ops in attention_ops(graph, CHEAP))
    return tuple(place for place in places if place.first is not None)


def _dim(mapping: tuple[tuple[int, ...], ...], factor: int) -> int:
    dim = dim_of(mapping, factor)
    assert dim is not None
    return dim
