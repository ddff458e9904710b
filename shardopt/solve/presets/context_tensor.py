"""The presets of sequence and weights at once: the last axis splits weights as `megatron` or
`sequence` does, the one before it the sequence as `context-gather` or `ulysses` does, the others
the batch (Llama 3: Grattafiori et al., arXiv 2407.21783, section 3.3.2, where they are called TP,
CP and DP).

Either method alone says of an operation which strategies it may take on a mesh without the other's
axis. Together they allow what is one of the first's where the second's axis is left out, and one of
the second's where the first's is: attention has tokens split by one and heads by the other, sums
over the features of a product are scattered along the sequence behind its own axis.

`-zero1` to `-zero3` split the state over all axes but the last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shardopt.mesh.mesh import Sharding
from shardopt.solve.presets.base import InputKinds, Restriction, in_full
from shardopt.solve.presets.context import ContextParallel, context_plan
from shardopt.solve.presets.data import check_for_zero, data_parallel
from shardopt.solve.presets.split_state import with_split_state
from shardopt.solve.presets.tensor import walk_pairs
from shardopt.solve.presets.walk import AxisWalk
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.strategies.strategies import Strategy, live_axes
from shardopt.support.errors import UserError

Allowed = Mapping[int, Sequence[int]]


def context_tensor(
    context: str, tensor: str, stage: int, tables: IntraOpTables, input_kinds: InputKinds
) -> Restriction:
    """`context` is context-gather or ulysses, `tensor` megatron or sequence; ZeRO `stage` 1 to 3
    besides, or 0. Raises UserError for a mesh of fewer than two axes, and what either method raises
    alone."""
    axes = live_axes(tables.mesh)
    name = f"{context}-{tensor}" + (f"-zero{stage}" if stage else "")
    if len(axes) < 2:
        raise UserError(
            f"preset '{name}' splits sequence and weights: expected a mesh of at least two axes, "
            f"found {tables.mesh}"
        )
    tokens = context_plan(name, context == "ulysses", tables, input_kinds, axes[:-1])
    batch = data_parallel(tables, input_kinds, name, axes[:-2])
    walk = walk_pairs(tensor, name, batch, axes[-1], input_kinds)
    if stage:
        check_for_zero(tokens, name, stage)
        split = with_split_state(walk, input_kinds, stage, tokens.axes)
        state, weights = split.fixed, split.allowed
        along = {**_of_tokens(tokens), **tokens.whole_for_use(stage)}
        along |= tokens.scattered_gradients(stage)
        free = tokens.flow.update
    else:
        state, weights = walk.state(), walk.allowed
        along = {**{op: in_full(tables, op) for op in tokens.flow.update}, **_of_tokens(tokens)}
        free = frozenset()
    both = _Both(tables, axes[-2], axes[-1])
    allowed = {
        op: numbers
        for op in sorted(along.keys() | weights.keys())
        if op not in free and (numbers := both.strategies(op, along, weights))
    }
    return Restriction({**state, **_inputs(tokens, walk)}, allowed, walk.gathered_for_use())


def _of_tokens(tokens: ContextParallel) -> dict[int, Sequence[int]]:
    return {**tokens.activations(), **tokens.sums_once_a_step()}


def _inputs(tokens: ContextParallel, walk: AxisWalk) -> dict[int, Sharding]:
    """Where batch and sequence start, and behind both the walk's axis on what arrives split."""
    arriving, shardings = walk.split_arrivals(), tokens.inputs()
    for tensor, place in arriving.items():
        if tensor in shardings:
            dims = shardings[tensor].dims
            split = (*dims[place], walk.axis)
            shardings[tensor] = Sharding((*dims[:place], split, *dims[place + 1 :]))
    return shardings


class _Both:
    """What two methods allow together, `along` an axis of the sequence and of `weights`."""

    def __init__(self, tables: IntraOpTables, along: str, weights: str) -> None:
        self._tables, self._along, self._weights = tables, along, weights

    def strategies(self, op: int, along: Allowed, weights: Allowed) -> Sequence[int]:
        """Of an operation, by what either method allows without the axis of the other; where they
        have none in common, what the second allows, and nothing if that is nothing. Where what they
        have reads terms of sums alone, tokens may be gathered: XLA splits either the rows of a
        table or the tokens that are added to them."""
        strategies = self._tables.ops[op].strategies
        of_weights = self._fitting(op, weights, self._along, range(len(strategies)))
        of_both = self._fitting(op, along, self._weights, of_weights)
        if of_both and all(self._reads_terms(strategies[number]) for number in of_both):
            gathered = (n for n in of_weights if not self._uses_along(strategies[n]))
            of_both = tuple(dict.fromkeys((*of_both, *gathered)))
        return of_both or (of_weights if op in weights else ())

    def _reads_terms(self, strategy: Strategy) -> bool:
        return any(self._along in sharding.unreduced for sharding in strategy.operands)

    def _uses_along(self, strategy: Strategy) -> bool:
        shardings = (*strategy.operands, *strategy.results)
        return any(self._along in (*each.axes, *each.unreduced) for each in shardings)

    def _fitting(
        self, op: int, allowed: Allowed, other: str, numbers: Iterable[int]
    ) -> tuple[int, ...]:
        """Those of the numbers that are allowed once an axis is left out, all where nothing is
        said."""
        strategies = self._tables.ops[op].strategies
        if op not in allowed:
            return tuple(numbers)
        known = {_without(strategies[number], other) for number in allowed[op]}
        return tuple(n for n in numbers if _without(strategies[n], other) in known)


def _without(strategy: Strategy, axis: str) -> tuple[object, ...]:
    """How operands and results lie once an axis is left out."""
    return tuple(
        (
            tuple(tuple(each for each in dim if each != axis) for dim in sharding.dims),
            frozenset(sharding.unreduced) - {axis},
        )
        for sharding in (*strategy.operands, *strategy.results)
    )
