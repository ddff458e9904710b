"""Where the sequence flows through a step: from the values in which it starts, past attention, to
the gradients of keys and values.

It is followed from attention back to where it starts (tokens, or what a front end made of an
image), and from there through the factors of the rules as the batch is
(`shardopt.solve.presets.flow`). Through attention go the rows; a sum over rows belongs to keys, and
the sequence goes on with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardopt.graph.op_graph import Op, OpGraph
from shardopt.solve.presets.attention_dims import AttentionDims, find_attention_dims
from shardopt.solve.presets.flow import BatchFlow, carried_factor, dim_led_by
from shardopt.solve.presets.slots import leading_factor
from shardopt.solve.presets.weights import dim_of
from shardopt.solve.sharding.strategies.factors import shardable_factors

# What keeps the dimensions of its first operand and changes their extents.
RESIZING = frozenset({"concatenate", "dynamic_slice", "pad", "slice"})


@dataclass(frozen=True)
class SequenceFlow:
    """`dims[t]` is the dimension on which tensor t carries a sequence, `factors[k]` the factor that
    carries it through operation k; `seeds` are where sequences start, with their dimension.

    `attention` are operations on scores, by the place they belong to; `joins[k]` is the factor of
    the keys in operation k that sums over rows, for gradients of keys and values. `extents` are
    those of the rows of attention, `heads` the numbers of heads, without repetitions."""

    seeds: Mapping[int, int]
    dims: tuple[int | None, ...]
    factors: tuple[int | None, ...]
    attention: Mapping[int, AttentionDims]
    joins: Mapping[int, int]
    extents: tuple[int, ...]
    heads: tuple[int, ...]


@dataclass
class Sequences:
    """The sequences that attention is over: see `SequenceFlow`."""

    seeds: dict[int, int]
    attention: dict[int, AttentionDims]
    extents: list[int]
    heads: list[int]


def find_sequences(
    graph: OpGraph, depends: Sequence[bool], batch: Sequence[int | None]
) -> Sequences:
    """Where they start and which operations are about scores. `depends` says of each tensor whether
    it is made of the batch, `batch` on which dimension it carries that, where this is known."""
    origins = _Origins(graph, depends, batch)
    seeds: dict[int, int] = {}
    attention: dict[int, AttentionDims] = {}
    extents: list[int] = []
    counts: list[int] = []
    for place in find_attention_dims(graph):
        first = place.first
        assert first is not None  # of all that are found
        of_rows = {f: dict(origins.of(*first.dim(first.query, f))) for f in first.rows}
        rows = next((factor for factor, found in of_rows.items() if found), None)
        if rows is None:
            continue
        examples = carried_factor(graph, first.op, batch)
        heads = [f for f in first.both if f != examples and not list(origins.of(*first.dim(0, f)))]
        place.name(rows, heads[0] if heads else None)
        seeds |= of_rows[rows] | dict(origins.of(*first.dim(first.key, first.keys)))
        attention |= dict.fromkeys(place.ops, place)
        extents.append(first.sizes[rows])
        counts.append(first.sizes[heads[0]] if heads else 1)
    return Sequences(seeds, attention, extents, counts)


def follow_sequence(graph: OpGraph, flow: BatchFlow, axis: str) -> SequenceFlow:
    """Along `axis`. Of a graph without attention, or whose attention is not over a sequence,
    nothing."""
    found = find_sequences(graph, flow.depends, flow.dims)
    origins = _Origins(graph, flow.depends, flow.dims)
    for op in graph.ops:
        for tensor, dim in rings(op, axis):
            found.seeds |= dict(origins.of(tensor, dim))
            found.extents.append(graph.tensors[tensor].shape[dim])
    dims, factors, joins = _spread(graph, flow, found.seeds, found.attention, axis)
    counts = (tuple(dict.fromkeys(each)) for each in (found.extents, found.heads))
    return SequenceFlow(found.seeds, tuple(dims), tuple(factors), found.attention, joins, *counts)


def rings(op: Op, axis: str) -> list[tuple[int, int]]:
    """The operands of a region that sends values around the axis, with the dimension that it
    splits; none for any other operation."""
    island = op.island
    if island is None or not any(step[:2] == ("permute", (axis,)) for step in island.steps):
        return []
    return [
        (tensor, dim)
        for tensor, dims in zip(op.operands, island.operands, strict=True)
        for dim, axes in enumerate(dims)
        if axes == (axis,)
    ]


@dataclass(frozen=True)
class _Origins:
    graph: OpGraph
    depends: Sequence[bool]
    batch: Sequence[int | None]

    def of(self, tensor: int, dim: int) -> Iterator[tuple[int, int]]:
        """Where a dimension of an activation starts: inputs, and values that are made of others
        without it. Nothing for a dimension that weights bring."""
        seen, pending = set[tuple[int, int]](), [(tensor, dim)]
        while pending:
            here = tensor, dim = pending.pop()
            if here in seen or not self.depends[tensor] or self.batch[tensor] == dim:
                continue
            seen.add(here)
            producer = self.graph.producers()[tensor]
            if producer < 0:
                yield here
                continue
            op = self.graph.ops[producer]
            brought, before = self._before(op, op.results.index(tensor), dim)
            pending += before
            if not brought and not before:
                yield here

    def _before(self, op: Op, result: int, dim: int) -> tuple[bool, list[tuple[int, int]]]:
        """Whether values that do not depend on the batch bring a dimension of a result, and the
        dimensions of those that do."""
        if op.rule is None:
            return False, []
        factor = leading_factor(op.rule.results[result][dim], op.rule.sizes)
        if factor is None or factor not in shardable_factors(op):
            return False, []
        carriers = [
            (operand, place)
            for operand, mapping in zip(op.operands, op.rule.operands, strict=False)
            if (place := dim_of(mapping, factor)) is not None
            and leading_factor(mapping[place], op.rule.sizes) == factor
        ]
        of_batch = [(operand, place) for operand, place in carriers if self.depends[operand]]
        return bool(carriers) and not of_batch, of_batch


_Found = tuple[list[int | None], list[int | None], dict[int, int]]


def _spread(
    graph: OpGraph,
    flow: BatchFlow,
    seeds: Mapping[int, int],
    attention: Mapping[int, AttentionDims],
    axis: str,
) -> _Found:
    """As far as the gradients: that of learned positions is a weight's, not a token's."""
    dims: list[int | None] = [seeds.get(tensor) for tensor in range(len(graph.tensors))]
    factors: list[int | None] = []
    joins: dict[int, int] = {}
    for index, op in enumerate(graph.ops):
        place = attention.get(index)
        factor = carried_factor(graph, op, dims) if place is None else place.factor(index, "rows")
        factors.append(factor)
        carries = factor
        if place is not None and op.rule is not None and factor in op.rule.reduction:
            carries = place.factor(index, "keys")
            if carries is not None and op.name == "dot_general":
                joins[index] = carries
        for position, result in enumerate(op.results):
            if op.island is not None and rings(op, axis):
                lies = op.island.results[position]
                dims[result] = lies.index((axis,)) if (axis,) in lies else None
            elif result not in seeds and index not in flow.gradients:
                dims[result] = _dim_of_result(op, position, carries, dims)
    return dims, factors, joins


def _dim_of_result(op: Op, position: int, factor: int | None, dims: list[int | None]) -> int | None:
    if factor is not None and op.rule is not None:
        return dim_led_by(op.rule.results[position], op.rule.sizes, factor)
    return dims[op.operands[0]] if op.name in RESIZING and op.operands else None
