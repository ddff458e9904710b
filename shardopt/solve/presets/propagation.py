"""Shardings spread from inputs through the factors of the rules, as GSPMD does it (Xu et al., arXiv
2105.04663, section 3.5): without a cost model, first through operations that keep every dimension,
then through all others, forward and backward in turn, until nothing changes.

What a tensor has is only ever made finer. Where operands disagree about a factor, the finer
sharding counts, and of equal ones the first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shardopt.graph.op_graph import FactorRule, Op, OpGraph
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.presets.base import Axes, tiles
from shardopt.solve.presets.slots import leading_factor
from shardopt.solve.sharding.strategies.factors import shardable_factors

_Mapping = tuple[tuple[int, ...], ...]


def propagate(graph: OpGraph, mesh: Mesh, seeds: Mapping[int, Sharding]) -> dict[int, Sharding]:
    """The sharding of every tensor; the seeds keep theirs."""
    return _Propagation(graph, mesh, seeds).run()


class _Propagation:
    def __init__(self, graph: OpGraph, mesh: Mesh, seeds: Mapping[int, Sharding]) -> None:
        self.graph, self.mesh, self.seeds = graph, mesh, seeds
        self.dims: list[tuple[Axes, ...]] = [
            seeds[t].dims if t in seeds else ((),) * len(tensor.shape)
            for t, tensor in enumerate(graph.tensors)
        ]
        self.usable = [frozenset(shardable_factors(op)) for op in graph.ops]

    def run(self) -> dict[int, Sharding]:
        level = 0
        ops = range(len(self.graph.ops))
        keeping = [k for k in ops if _keeps_dimensions(self.graph.ops[k])]
        while level < 2:
            chosen: Sequence[int] = ops if level else keeping
            level = 0 if self._spread(chosen) and level else level + 1
        return {tensor: Sharding(dims) for tensor, dims in enumerate(self.dims)}

    def _spread(self, ops: Sequence[int]) -> bool:
        """Once forward and once backward; whether a sharding became finer."""
        forward = [self._pass_on(op, backward=False) for op in ops]
        return any([*forward, *(self._pass_on(op, backward=True) for op in reversed(ops))])

    def _pass_on(self, index: int, backward: bool) -> bool:
        op = self.graph.ops[index]
        if op.rule is None:
            return False
        sides = (
            list(zip(op.operands, op.rule.operands, strict=False)),
            list(zip(op.results, op.rule.results, strict=True)),
        )
        source, target = reversed(sides) if backward else sides
        axes_of = self._factor_axes(op.rule, source, self.usable[index])
        changed = [self._refine(tensor, mapping, op.rule, axes_of) for tensor, mapping in target]
        return any(changed)

    def _factor_axes(
        self, rule: FactorRule, source: Iterable[tuple[int, _Mapping]], usable: frozenset[int]
    ) -> dict[int, Axes]:
        """The finest split of each factor, an axis on one factor only."""
        axes_of: dict[int, Axes] = {}
        for tensor, mapping in source:
            for axes, factors in zip(self.dims[tensor], mapping, strict=True):
                factor = leading_factor(factors, rule.sizes)
                if factor not in usable or factor is None or rule.sizes[factor] % self._tiles(axes):
                    continue
                others = {a for f, split in axes_of.items() if f != factor for a in split}
                if len(axes) > len(axes_of.get(factor, ())) and others.isdisjoint(axes):
                    axes_of[factor] = axes
        return axes_of

    def _refine(
        self, tensor: int, mapping: _Mapping, rule: FactorRule, axes_of: Mapping[int, Axes]
    ) -> bool:
        if tensor in self.seeds:
            return False
        dims = list(self.dims[tensor])
        for place, factors in enumerate(mapping):
            factor = leading_factor(factors, rule.sizes)
            axes = () if factor is None else axes_of.get(factor, ())
            taken = {axis for d, split in enumerate(dims) if d != place for axis in split}
            is_finer = len(axes) > len(dims[place]) and axes[: len(dims[place])] == dims[place]
            if is_finer and taken.isdisjoint(axes):
                dims[place] = axes
        changed = tuple(dims) != self.dims[tensor]
        self.dims[tensor] = tuple(dims)
        return changed

    def _tiles(self, axes: Axes) -> int:
        return tiles(self.mesh, axes)


def _keeps_dimensions(op: Op) -> bool:
    """Whether every dimension of an operand is one of the result, and the other way round."""
    rule = op.rule
    return rule is not None and all(
        sorted(mapping) == sorted(rule.results[0]) for mapping in (*rule.operands, *rule.results)
    )
