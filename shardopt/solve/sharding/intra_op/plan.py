"""What an intra-operator solution says: the sharding of every tensor, the collectives, and the
predicted costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shardopt.cost.summary import CostSummary
from shardopt.cost.traffic import of_step, total
from shardopt.solve.sharding.intra_op.communication import Communication
from shardopt.solve.sharding.intra_op.overlap import saved_seconds
from shardopt.solve.sharding.intra_op.rematerialized import Rematerialized
from shardopt.solve.sharding.intra_op.sharded_ops import ShardedOps


@dataclass(frozen=True)
class IntraOpPlan(ShardedOps):
    """Sharded operations with all that follows: `live_bytes[n]` is what a device holds while the
    n-th of them in `order` runs; `rematerialized` values are recomputed for their last readers."""

    communication: tuple[Communication, ...]
    order: tuple[int, ...]
    live_bytes: np.ndarray
    rematerialized: tuple[Rematerialized, ...] = ()

    @property
    def peak_bytes(self) -> int:
        return int(self.live_bytes.max(initial=0))

    def summary(self, ops: Iterable[int] | None = None, *, repeated: bool = True) -> CostSummary:
        """Costs of `ops`, of all operations by default; of one execution of their group unless
        `repeated`."""
        chosen = set(self.strategies if ops is None else ops)
        moved = [item for item in self.communication if item.op in chosen]
        groups = {
            op: self.graph.ops[op].repeat // (self.graph.ops[op].trips or 1) if repeated else 1
            for op in chosen
        }
        times = {op: groups[op] * self.graph.ops[op].trips for op in chosen}
        held = [
            int(size) for op, size in zip(self.order, self.live_bytes, strict=True) if op in chosen
        ]
        computed = [
            (op, strategy.compute_seconds)
            for op, strategy in self.strategies.items()
            if op in chosen
        ]
        computed += [
            (remat.readers[0], remat.seconds)
            for remat in self.rematerialized
            if remat.readers[0] in chosen
        ]
        hidden = _hidden_seconds(
            ((self.graph.ops[op].group, seconds * times[op]) for op, seconds in computed),
            (
                (
                    self.graph.ops[item.op].group,
                    item.beside * item.seconds * groups[item.op] * item.trips,
                )
                for item in moved
            ),
        )
        return CostSummary(
            compute_seconds=sum(seconds * times[op] for op, seconds in computed),
            communication_seconds=sum(
                item.seconds * groups[item.op] * item.trips for item in moved
            ),
            peak_bytes=max(held, default=0),
            traffic=total(
                of_step(item.step, self.mesh, groups[item.op] * item.trips) for item in moved
            ),
            hidden_seconds=hidden,
        )


def _hidden_seconds(
    computing: Iterable[tuple[int, float]], beside: Iterable[tuple[int, float]]
) -> float:
    """Of (group, seconds); what runs beside others does so within its group."""
    per_group = defaultdict[int, list[float]](lambda: [0.0, 0.0])
    for place, seconds in enumerate((computing, beside)):
        for group, each in seconds:
            per_group[group][place] += each
    return sum(saved_seconds(*both) for both in per_group.values())
