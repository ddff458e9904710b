"""Which mesh axes split which factors of an operation, read back from the shardings of what it
reads and makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardopt.graph.op_graph import FactorRule
from shardopt.mesh.mesh import Mesh, Sharding

Axes = tuple[str, ...]


class CannotSplit(Exception):
    """An operation cannot run on tiles as planned; the message says why."""


@dataclass(frozen=True)
class OpSplit:
    """`axes` of each factor that is split; along the axes `reduced` the operation leaves terms of
    its result, and along `terms` it is given terms."""

    axes: Mapping[int, Axes]
    reduced: Axes
    terms: Axes


def read_split(
    rule: FactorRule | None,
    operands: Sequence[Sharding],
    results: Sequence[Sharding],
    mesh: Mesh,
) -> OpSplit:
    """Raises CannotSplit where shardings do not agree with each other, or with the rule."""
    terms = {axis for sharding in operands for axis in sharding.unreduced}
    axes: dict[int, Axes] = {}
    sides = () if rule is None else (*rule.operands, *rule.results)
    if rule is None and any(sharding.axes for sharding in (*operands, *results)):
        raise CannotSplit("no sharding rule is known for it")
    # Regions may capture further operands, which are whole.
    shardings = (*operands[: len(rule.operands)], *results) if rule is not None else ()
    for mapping, sharding in zip(sides, shardings, strict=True):
        for factors, over in zip(mapping, sharding.dims, strict=True):
            assert rule is not None
            for factor, split in _distributed(rule, factors, over, mesh):
                if axes.setdefault(factor, split) != split:
                    raise CannotSplit("its operands and results are split in different ways")
    reduction = rule.reduction if rule is not None else frozenset()
    reduced = {axis for factor in reduction for axis in axes.get(factor, ())}
    return OpSplit(
        {factor: split for factor, split in axes.items() if split},
        tuple(axis for axis in mesh.axis_names if axis in reduced),
        tuple(axis for axis in mesh.axis_names if axis in terms),
    )


def _distributed(
    rule: FactorRule, factors: Sequence[int], over: Axes, mesh: Mesh
) -> list[tuple[int, Axes]]:
    """The axes of a dimension among its factors, major to minor: a factor takes axes until it is
    split into single elements."""
    left, shares = [axis for axis in over if mesh.axis_size(axis) > 1], []
    for number, factor in enumerate(factors):
        taken: list[str] = []
        extent = rule.sizes[factor]
        is_last = number == len(factors) - 1
        while left and (is_last or extent >= mesh.axis_size(left[0])):
            extent //= mesh.axis_size(left[0])
            taken.append(left.pop(0))
            if extent % 1:
                break
        shares.append((factor, tuple(taken)))
        if extent > 1 and not is_last:
            # A minor factor is split only where the major one is split into single elements.
            shares += [(later, ()) for later in factors[number + 1 :]]
            if left:
                raise CannotSplit("a dimension is split across the border of its factors")
            break
    return shares
