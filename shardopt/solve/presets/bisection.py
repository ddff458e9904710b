"""Tofu (Wang, Huang, Li, EuroSys'19, arXiv 1807.08887, section 5): the best split over one axis of
the mesh after the other.

Each step splits every operation that can be split over the groups of devices along one axis, at
least cost for the splits before it, which it keeps. The steps together are a greedy search of all
splits, whose time grows with the number of axes and not with their product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardopt.mesh.mesh import Sharding
from shardopt.solve.assignment.limits import SearchLimits
from shardopt.solve.assignment.problem import Solution
from shardopt.solve.presets.base import Axes, InputKinds, Restriction
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem, IntraOpTables
from shardopt.solve.sharding.strategies.strategies import Strategy, live_axes
from shardopt.support.errors import UserError

# A step stops within this share of its optimum.
_GAP = 1e-4


def tofu(tables: IntraOpTables, input_kinds: InputKinds) -> Restriction:
    """Raises UserError where a step finds no sharding."""
    axes, choices = live_axes(tables.mesh), [0] * len(tables.ops)
    inputs: dict[int, Sharding] = {}
    for count, axis in enumerate(axes, 1):
        finer = {
            op: _finer(tables, op, choices[op], axes[: count - 1], axis)
            for op in range(len(tables.ops))
        }
        every = {op: split or kept for op, (split, kept) in finer.items()}
        problem, solution = _step(tables, input_kinds, every)
        if not solution.choice:  # what is tied to an operation that cannot be split is whole
            some = {op: (*split, *kept) for op, (split, kept) in finer.items()}
            problem, solution = _step(tables, input_kinds, some)
        if not solution.choice:
            raise UserError(f"preset 'tofu' finds no split over axis {axis} of {tables.mesh}")
        choices = list(solution.choice[: len(choices)])
        # What they are split by is found anew with each axis, as nothing is computed of it.
        shardings = solution.choice[len(choices) :]
        inputs = {
            tensor: problem.columns[tensor].shardings[number]
            for tensor, number in zip(problem.inputs, shardings, strict=True)
        }
    return Restriction(inputs, {op: (number,) for op, number in enumerate(choices)})


def _step(
    tables: IntraOpTables, input_kinds: InputKinds, allowed: Mapping[int, Sequence[int]]
) -> tuple[IntraOpProblem, Solution]:
    problem = tables.problem(allowed=allowed, tied=input_kinds.tied)
    return problem, problem.solve(SearchLimits(gap_tolerance=_GAP))


def _finer(
    tables: IntraOpTables, op: int, before: int, done: Axes, axis: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The strategies that split an operation over the axis and over the others as strategy `before`
    does, and those that leave the axis out."""
    strategies = tables.ops[op].strategies
    kept = _along(strategies[before], done)
    known = [
        (number, _along(strategy, (*done, axis)))
        for number, strategy in enumerate(strategies)
        if _along(strategy, done) == kept and _axes(strategy) <= {*done, axis}
    ]
    return (
        tuple(number for number, shardings in known if shardings != kept),
        tuple(number for number, shardings in known if shardings == kept),
    )


def _along(strategy: Strategy, axes: Axes) -> tuple[Sharding, ...]:
    """The shardings of operands and results on some axes alone."""
    return tuple(
        Sharding(
            tuple(tuple(axis for axis in dim if axis in axes) for dim in sharding.dims),
            tuple(axis for axis in sharding.unreduced if axis in axes),
        )
        for sharding in (*strategy.operands, *strategy.results)
    )


def _axes(strategy: Strategy) -> set[str]:
    shardings = (*strategy.operands, *strategy.results)
    return {axis for each in shardings for axis in (*each.axes, *each.unreduced)}
