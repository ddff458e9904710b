"""The context-parallel presets: the innermost axis splits the sequence, the others the batch, and
weights are whole.

All that works on tokens keeps its own. What differs is how attention gets at the keys and values of
other tokens:

* `context-gather` (Llama 3: Grattafiori et al., arXiv 2407.21783, section 3.3.2): keys and values
  are gathered, each device attends with its own queries, and the gradients of keys and values are
  reduce-scattered.
* `ulysses` (DeepSpeed-Ulysses: Jacobs et al., arXiv 2309.14509, section 3.1): all-to-alls of
  queries, keys and values give each device whole sequences of some heads, and one of the result
  gives it its tokens back; backward the same way.
* `ring` (Liu et al., arXiv 2310.01889): keys and values go round by permutes, in regions that
  `shardopt-rotate-keys` writes before; their gradients go round with them.

`-zero1` to `-zero3` split the state over all axes, those of the sequence included (section 3.4 of
the latter)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from shardopt.graph.op_graph import Op
from shardopt.mesh.mesh import Sharding
from shardopt.solve.presets.base import (
    InputKinds,
    Restriction,
    Split,
    dims_of,
    finished,
    in_full,
    replicated,
    strategies_that_split,
    tiles,
)
from shardopt.solve.presets.data import (
    DataParallel,
    check_for_zero,
    data_parallel,
    state_in_parts,
)
from shardopt.solve.presets.flow import BatchFlow, classified
from shardopt.solve.presets.sequence_flow import SequenceFlow, follow_sequence, rings
from shardopt.solve.presets.sums import adding_up, unreduced
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.strategies.strategies import live_axes
from shardopt.support.errors import UserError

# What brings keys to the products of attention, and their gradients back, without computing: it may
# stand on either side of an exchange (heads that several queries share are repeated behind it).
_MOVES = frozenset({"broadcast_in_dim", "convert", "reshape", "transpose"})


@dataclass(frozen=True, eq=False)
class ContextParallel(DataParallel):
    """`axes` are those of the batch and, last, that of the sequence; `flow` counts an operation
    with either as batched. `batch` is the flow of the batch alone."""

    batch: BatchFlow
    sequence: SequenceFlow
    by_heads: bool

    @property
    def axis(self) -> str:
        return self.axes[-1]

    @property
    def size(self) -> int:
        return self.tables.mesh.axis_size(self.axis)

    def inputs(self) -> dict[int, Sharding]:
        """Batch arguments without a known sequence (labels) lie as their readers like."""
        shardings = {}
        for tensor in self.batch.seeds.keys() | self.sequence.seeds.keys():
            shape = self.tables.graph.tensors[tensor].shape
            is_input = self.tables.producers[tensor] < 0
            place = self.sequence.seeds.get(tensor)
            if is_input and place is not None and shape[place] % self.size == 0:
                rows = self.batch.seeds.get(tensor)
                shardings[tensor] = Sharding(
                    tuple(
                        (self.axis,) if dim == place else self.axes[:-1] if dim == rows else ()
                        for dim in range(len(shape))
                    )
                )
        return shardings

    def split(self, op: int) -> Split:
        batch, factor = self.batch_split(op), self._sequence_factor(op)
        return batch if factor is None else {**batch, factor: (self.axis,)}

    def batch_split(self, op: int) -> Split:
        factor, rule = self.batch.factors[op], self.tables.graph.ops[op].rule
        axes = self.axes[:-1]
        if factor is None or rule is None or not axes:
            return {}
        return {} if rule.sizes[factor] % tiles(self.tables.mesh, axes) else {factor: axes}

    def _sequence_factor(self, op: int) -> int | None:
        """That of the heads in attention, if these are split."""
        factor, rule = self.sequence.factors[op], self.tables.graph.ops[op].rule
        place = self.sequence.attention.get(op)
        if place is not None and self.by_heads:
            factor = place.factor(op, "heads")
        if factor is None or rule is None or factor == self.batch.factors[op]:
            return None
        return None if rule.sizes[factor] % self.size else factor

    def as_split(self, op: int) -> Sequence[int]:
        """Along the batch or along the sequence where XLA cannot do both (a sum of scattered
        rows)."""
        split = self.split(op)
        each = [
            number
            for factor, axes in split.items()
            for number in strategies_that_split(self.tables, op, {factor: axes})
        ]
        return strategies_that_split(self.tables, op, split) or each or in_full(self.tables, op)

    def activations(self) -> dict[int, Sequence[int]]:
        """What carries the sequence where its axis cannot split it is left to the solver."""
        strategies = super().activations()
        for op in self._left_to_solver:
            strategies.pop(op, None)
        for op, node in enumerate(self.tables.graph.ops):
            if op in self.sequence.joins and not self.by_heads:
                strategies[op] = self._joined(op)
            elif op in strategies and (op in self._moves or self._reads_terms(node)):
                strategies[op] = tuple(dict.fromkeys((*strategies[op], *self._other_side(op))))
        return {op: numbers for op, numbers in strategies.items() if numbers}

    @cached_property
    def _left_to_solver(self) -> frozenset[int]:
        dims, attention = self.sequence.dims, self.sequence.attention
        return frozenset(
            index
            for index, op in enumerate(self.tables.graph.ops)
            if index not in attention
            and self._sequence_factor(index) is None
            and any(dims[tensor] is not None for tensor in op.operands)
        )

    def _joined(self, op: int) -> Sequence[int]:
        """The gradients of keys and values: the sum over rows scattered along the keys, or left to
        what adds to it."""
        rule = self.tables.graph.ops[op].rule
        assert rule is not None
        split = self.split(op)
        target = {**self.batch_split(op), self.sequence.joins[op]: (self.axis,)}
        [scattered] = dims_of(rule, rule.results, target)
        return (
            *strategies_that_split(self.tables, op, split, scatter=scattered),
            *unreduced(self.tables, op, strategies_that_split(self.tables, op, split)),
        )

    @cached_property
    def _moves(self) -> frozenset[int]:
        """What only moves values from the layout of tokens to that of attention, and back."""
        graph = self.tables.graph
        makers, readers = graph.producers(), graph.consumers()

        def before(op: int) -> Iterable[int]:
            return (makers[tensor] for tensor in graph.ops[op].operands if makers[tensor] >= 0)

        def behind(op: int) -> Iterable[int]:
            return (reader for tensor in graph.ops[op].results for reader in readers[tensor])

        return frozenset(self._reached(before) | self._reached(behind))

    def _reached(self, step: Callable[[int], Iterable[int]]) -> set[int]:
        """What moves values and is reached from attention by steps over nothing else."""
        attention, found = self.sequence.attention, set[int]()
        pending = sorted(attention)
        while pending:
            for op in step(pending.pop()):
                is_new = op not in found and op not in attention
                if is_new and self.tables.graph.ops[op].name in _MOVES:
                    found.add(op)
                    pending.append(op)
        return found

    def _other_side(self, op: int) -> Sequence[int]:
        """Strategies of an operation beside an exchange that belong to its other side: whole
        sequences, of some heads where these are split, or terms of the sum over rows."""
        node, rule = self.tables.graph.ops[op], self.tables.graph.ops[op].rule
        if rule is None:
            return ()
        batch = self.batch_split(op)
        terms = adding_up(self.tables, op, (self.axis,))
        wanted = {dims_of(rule, rule.results, each) for each in (batch, self.split(op))}
        made = self.tables.ops[op].strategies
        kept = [n for n in terms if tuple(each.dims for each in made[n].results) in wanted]
        if op not in self._moves:
            return kept
        numbers = list(strategies_that_split(self.tables, op, batch))
        if self.by_heads:
            numbers = self._by_heads(node, op)
        return (*kept, *finished(self.tables, op, numbers))

    def _by_heads(self, node: Op, op: int) -> list[int]:
        """With any factor in the place of the sequence."""
        assert node.rule is not None
        batch = self.batch_split(op)
        others = [f for f, size in enumerate(node.rule.sizes) if f not in batch and size > 1]
        return [
            number
            for factor in others
            for number in strategies_that_split(self.tables, op, {**batch, factor: (self.axis,)})
        ]

    @cached_property
    def _terms(self) -> frozenset[int]:
        """What may be terms of gradients of keys and values."""
        found: set[int] = set()
        for index, (op, linear) in enumerate(
            zip(self.tables.graph.ops, self.tables.linear, strict=False)
        ):
            made_of = {op.operands[position] for mode in linear.modes for position in mode}
            if index in self.sequence.joins or made_of & found:
                found.update(op.results)
        return frozenset(found)

    def _reads_terms(self, op: Op) -> bool:
        return not self._terms.isdisjoint(op.operands)


def context(method: str, stage: int, tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    """`method` is context-gather, ulysses or ring; ZeRO `stage` 1 to 3 over all axes besides, or 0.
    Raises UserError where no attention is found, or the axis divides none."""
    axes = live_axes(tables.mesh)
    if not axes:
        return Restriction()
    preset = f"{method}-zero{stage}" if stage else method
    if method == "ring" and not any(rings(op, axes[-1]) for op in tables.graph.ops):
        raise UserError(
            f"preset '{preset}' lets keys go round: expected regions that do, as "
            "shardopt-rotate-keys writes them on one mesh without stages, found none"
        )
    plan = context_plan(preset, method == "ulysses", tables, input_kinds, axes)
    if stage:
        check_for_zero(plan, preset, stage)
        return state_in_parts(plan, input_kinds, stage)
    update = {op: in_full(tables, op) for op in sorted(plan.flow.update)}
    state = replicated(tables, sorted(input_kinds.state))
    return Restriction(
        {**state, **plan.inputs()}, {**update, **plan.activations(), **plan.sums_once_a_step()}
    )


def context_plan(
    preset: str,
    by_heads: bool,
    tables: IntraOpTables,
    input_kinds: InputKinds,
    axes: tuple[str, ...],
) -> ContextParallel:
    """How batch and sequence are split, over the last of the axes. Raises UserError."""
    data = data_parallel(tables, input_kinds, preset, axes[:-1])
    sequence = follow_sequence(tables.graph, data.flow, axes[-1])
    _check(preset, by_heads, tables, axes[-1], sequence)
    pairs = zip(data.flow.factors, sequence.factors, strict=True)
    tokens = [batch if batch is not None else rows for batch, rows in pairs]
    flow = classified(tables.graph, input_kinds, data.flow.seeds, data.flow.dims, tokens)
    return ContextParallel(tables, flow, (*data.axes, axes[-1]), data.flow, sequence, by_heads)


def _check(
    preset: str, by_heads: bool, tables: IntraOpTables, axis: str, sequence: SequenceFlow
) -> None:
    size = tables.mesh.axis_size(axis)
    if not sequence.extents:
        raise UserError(
            f"preset '{preset}' splits the sequence of attention: expected a softmax between two "
            "products of activations, found none"
        )
    if not any(extent % size == 0 for extent in sequence.extents):
        found = ", ".join(map(str, sequence.extents))
        raise UserError(
            f"preset '{preset}' splits the sequence of attention: expected an extent that "
            f"{axis}={size} divides, found {found}"
        )
    if by_heads and not any(count % size == 0 for count in sequence.heads):
        found = ", ".join(map(str, sequence.heads))
        raise UserError(
            f"preset '{preset}' splits the heads of attention: expected a number that "
            f"{axis}={size} divides, found {found}"
        )
