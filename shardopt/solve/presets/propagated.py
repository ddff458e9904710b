"""Propagation as a preset: the shardings it gave every tensor, or the nearest ones of our
strategies.

* `shardy`: Shardy's own, from the user's annotations or a split batch.
* `heuristic`: GSPMD's, from inputs that are all split along their largest dimension.

Shardy (openxla.org/shardy) spreads the shardings of arguments through the factors of its rules,
without a cost model. Where its choice for a tensor is none that a strategy makes (an uneven
dimension, axes out of order, an operation that we do not split), the sharding that agrees with most
of it is taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from math import prod

from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.presets.base import InputKinds, Restriction, split_longest, tiles
from shardopt.solve.presets.propagation import propagate
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.strategies.strategies import live_axes
from shardopt.support.errors import UserError


def shardy(tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    if not input_kinds.propagated:
        raise UserError(
            "preset 'shardy' reads what Shardy propagates: expected its shardings of the "
            "graph, found none"
        )
    return as_propagated(tables, input_kinds)


def heuristic(tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    """Alpa's (arXiv 2201.12023, section 8.3): the largest dimension of every input is split, and
    what that makes of the rest is propagated."""
    mesh, tensors = tables.mesh, tables.graph.tensors
    seeds = {
        tensor: split_longest(mesh, tensors[tensor].shape, live_axes(mesh))
        for tensor in tables.graph.inputs
        if tensors[tensor].shape
    }
    return as_propagated(
        tables, replace(input_kinds, propagated=propagate(tables.graph, mesh, seeds))
    )


def as_propagated(tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    """Every tensor as near to its propagated sharding as a strategy makes it."""
    # A result that replaces an argument has to lie as the argument does, whatever was made of it.
    replacing = {second for _, second in input_kinds.tied}
    chosen = {
        tensor: nearest(tables.mesh, sharding, _possible(tables, tensor))
        for tensor, sharding in sorted(input_kinds.propagated.items())
        if tensor not in tables.cheap_to_clone
    }
    fixed = {tensor: sharding for tensor, sharding in chosen.items() if tensor not in replacing}
    return Restriction(fixed, _without_resharding(tables, fixed))


def _possible(tables: IntraOpTables, tensor: int) -> Sequence[Sharding]:
    """The shardings that the user leaves a tensor, and that are not only made of terms: all, where
    those are none."""
    constraints, op = tables.constraints, tables.producers[tensor]
    choices = tables.column(tensor).distinct
    if op >= 0:
        place = tables.graph.ops[op].results.index(tensor)
        made = (
            each.results[place]
            for each in tables.ops[op].strategies
            if constraints.permits(op, each) and not any(o.unreduced for o in each.operands)
        )
        choices = tuple(dict.fromkeys(made)) or choices
    demanded = constraints.allowed.get(tensor, choices)
    return [sharding for sharding in choices if sharding in demanded] or choices


def _without_resharding(
    tables: IntraOpTables, chosen: Mapping[int, Sharding]
) -> dict[int, Sequence[int]]:
    """The strategies that take operands as they lie: Shardy reshards only where there is none."""
    in_place: dict[int, Sequence[int]] = {}
    for op, node in enumerate(tables.graph.ops):
        operands = [
            (place, chosen[tensor])
            for place, tensor in enumerate(node.operands)
            if tensor in chosen
        ]
        results = [
            (place, chosen[tensor]) for place, tensor in enumerate(node.results) if tensor in chosen
        ]
        numbers = tuple(
            number
            for number, strategy in enumerate(tables.ops[op].strategies)
            if all(strategy.operands[place] == sharding for place, sharding in operands)
            and all(strategy.results[place] == sharding for place, sharding in results)
        )
        if numbers and operands:
            in_place[op] = numbers
    return in_place


def nearest(mesh: Mesh, target: Sharding, choices: Sequence[Sharding]) -> Sharding:
    """The choice with most of the wanted tiles, of these the one with the fewest others, of these
    the first."""

    def rank(choice: Sharding) -> tuple[int, int]:
        common = prod(
            tiles(mesh, _common(a, b)) for a, b in zip(target.dims, choice.dims, strict=True)
        )
        return -common, prod(choice.tile_counts(mesh))

    return min((choice for choice in choices if not choice.unreduced), key=rank)


def _common(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    """The leading axes that both have."""
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return tuple(axis for axis, _ in pairs)
