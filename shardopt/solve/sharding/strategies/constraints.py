"""What users demand of a plan, as the intra-operator problem takes it: allowed shardings and
forbidden axes.

Both are plain data: whoever reads annotations or a constraints file decides there what fits, with
the place to name in an error at hand. A value that is to have a sharding whatever its operation
makes is followed by a *marker*, an operation that hands its operand on; its strategies are the
allowed shardings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardopt.mesh.mesh import Sharding
from shardopt.solve.sharding.strategies.strategies import Strategy


@dataclass(frozen=True)
class Constraints:
    """`allowed[tensor]` are the shardings it may have; `forbidden[op]` axes that may split neither
    the operands nor the results of an operation, nor what it contracts; `even` are tensors that
    have no padding. Without `partitioned` it is not XLA's partitioner that makes the tiles: nothing
    has padding then, and nothing is fetched from far away."""

    allowed: Mapping[int, tuple[Sharding, ...]] = field(default_factory=dict)
    forbidden: Mapping[int, frozenset[str]] = field(default_factory=dict)
    even: frozenset[int] = frozenset()
    partitioned: bool = True

    def permits(self, op: int, strategy: Strategy) -> bool:
        axes = self.forbidden.get(op, frozenset())
        used = {
            axis
            for s in (*strategy.operands, *strategy.results)
            for axis in (*s.axes, *s.unreduced)
        }
        return axes.isdisjoint(used) and axes.isdisjoint(strategy.reduced)
