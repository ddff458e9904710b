"""Sums that are added up before they are taken.

    %a = dot_general …   terms on each device         %a, %b: unreduced
    %b = dot_general …   terms on each device    =>   %c = add %a, %b, unreduced too
    %c = add %a, %b                                   one sum, of %c, whole or scattered

The gradients of a tied embedding, and the input gradients of queries, keys and values, are such
terms. Where the form of the output cannot say so (`shardopt.solve.sharding.strategies.linear`),
each is summed by itself."""

from __future__ import annotations

from collections.abc import Sequence

from shardopt.solve.presets.base import (
    Axes,
    Split,
    is_part,
    scattering,
    strategies_that_split,
)
from shardopt.solve.sharding.intra_op.problem import IntraOpTables


def joined_terms(tables: IntraOpTables) -> frozenset[int]:
    """Values that may stay unreduced and are added to others that may, themselves or what a linear
    operation makes of them. What is added to the sum of former microbatches, which comes from
    another fragment, is not meant."""
    joined: set[int] = set()
    makers = tables.graph.producers()
    pairs = list(zip(tables.graph.ops, tables.linear, strict=False))
    for op, linear in reversed(pairs):
        for mode in linear.modes:
            terms = {op.operands[position] for position in mode}
            groups = {tables.graph.ops[makers[t]].group if makers[t] >= 0 else None for t in terms}
            if (len(terms) > 1 and groups == {op.group}) or not joined.isdisjoint(op.results):
                joined |= terms
    return frozenset(joined)


def unreduced(tables: IntraOpTables, op: int, numbers: Sequence[int]) -> tuple[int, ...]:
    """Those of the strategies that leave the sum to the readers."""
    strategies = tables.ops[op].strategies
    return tuple(n for n in numbers if any(each.unreduced for each in strategies[n].results))


def scattered_sum(
    tables: IntraOpTables,
    op: int,
    split: Split,
    joined: frozenset[int],
    over: Axes | None = None,
) -> tuple[int, ...]:
    """The strategies of a product that leave each device a part of the sum over the split factors
    (with `over`, parts along these axes alone), or terms of it where these are added to others
    first; in a loop over microbatches either. What is not scattered stays open through a loop."""
    terms = unreduced(tables, op, strategies_that_split(tables, op, split))
    node = tables.graph.ops[op]
    parts = scattering(tables, op, split, over)
    if node.repeat > 1:
        parts = unreduced(tables, op, parts) or parts
    if not terms or node.results[0] not in joined:
        return parts
    return terms if node.repeat == 1 else (*terms, *parts)


def adding_up(tables: IntraOpTables, op: int, axes: Axes) -> tuple[int, ...]:
    """The strategies in which an operation works on terms along `axes`."""
    numbers = []
    for number, strategy in enumerate(tables.ops[op].strategies):
        terms = [each.unreduced for each in strategy.operands if each.unreduced]
        if terms and all(set(each) == set(axes) for each in terms):
            numbers.append(number)
    return tuple(numbers)


def scattering_terms(
    tables: IntraOpTables,
    op: int,
    joined: frozenset[int],
    axes: Axes,
    over: Axes | None = None,
) -> tuple[int, ...]:
    """Of these strategies, those that leave the sum to the readers where these add to it further,
    and elsewhere those that leave each device a part of it (with `over`, along these axes alone);
    none for an operation that reads none of the terms `joined`."""
    node, strategies = tables.graph.ops[op], tables.ops[op].strategies
    if joined.isdisjoint(node.operands):
        return ()
    numbers = adding_up(tables, op, axes)
    if not joined.isdisjoint(node.results):
        return unreduced(tables, op, numbers)
    return tuple(
        n
        for n in numbers
        if not strategies[n].results[0].unreduced
        and is_part(strategies[n].results, set(axes), set(strategies[n].unscattered[0].axes), over)
    )
