"""Shardings of a stage that trade seconds for memory: a Lagrangian multiplier of the memory limit.

The shortest sharding of a stage often keeps weights or optimizer state whole on several devices.
Where it does not fit, every byte held at the peak gets a cost in seconds, and the small problem of
the classes is solved once more. At a low cost only state is split that the update alone reads; at a
higher cost also weights that must then be gathered in every microbatch, and twice where a fragment
runs forward and backward. The shard phase later solves the same stage under the limit itself.

Which cost is right is found as for a shortest path with one resource (LARAC: Jüttner et al.,
INFOCOM 2001): of a sharding that is too large and one that fits, the next cost is that at which
both are as good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardopt.solve.sharding.strategies.tables import StrategyTables
from shardopt.solve.stages.costs.class_problem import ClassProblem
from shardopt.solve.stages.costs.part_facts import PartFacts
from shardopt.solve.stages.costs.sharded_part import ShardedPart
from shardopt.solve.stages.costs.sharders import GAP, Memory, PartSharding, sharding_of
from shardopt.solve.stages.costs.stage_part import StagePart

# What all the memory of a device is worth, in times of the shortest step of the stage, from mild to
# strict.
STRICTNESS = (0.15, 1.0, 10.0)

# Costs that are tried between that of a sharding that fits and a lower one, and what there has to
# be gained, as a share of the step: of any stage, and of one of the best plan.
Effort = tuple[int, float]
ROUGHLY, CLOSELY = (2, 0.005), (6, 0.0005)


@dataclass(frozen=True, eq=False)
class Leaner:
    """A sharding of a stage, and the bytes that it needs."""

    sharding: PartSharding
    memory: Memory
    need: int

    @property
    def seconds(self) -> float:
        return sum(self.sharding.fragment_seconds)


def leaner(
    shortest: Leaner,
    limit: int,
    priced: Callable[[float], Leaner],
    effort: Effort,
) -> Leaner:
    """The shortest sharding found within the limit, or the leanest where none is; the shortest of
    all needs more. `priced` is the best one where a byte costs so many seconds."""
    most_between, worthwhile = effort
    above, fits = shortest, None
    for strictness in STRICTNESS:
        found = priced(strictness * shortest.seconds / limit)
        if found.need <= limit:
            fits = found
            break
        above = min(above, found, key=lambda each: each.need)
    if fits is None:
        return above
    for _ in range(most_between):
        if fits.seconds - above.seconds <= worthwhile * shortest.seconds:
            break
        found = priced((fits.seconds - above.seconds) / (above.need - fits.need))
        if found.need > limit:
            if found.need >= above.need or found.seconds <= above.seconds:
                break
            above = found
        elif found.seconds < fits.seconds:
            fits = found
        else:
            break
    return fits


@dataclass(frozen=True)
class LeanSharder:
    """Shortens a step plus `byte_seconds` times what a device holds where `plain`, the shortest
    sharding, holds most with `in_flight` microbatches, with older `versions` of its weights."""

    plain: PartSharding
    byte_seconds: float
    in_flight: int
    versions: int = 0

    def content(self, part: StagePart) -> str:
        older = f", {self.versions} older versions" * bool(self.versions)
        cost = f"{self.byte_seconds!r} seconds a byte"
        return f"ilp {GAP} with {cost}, {self.in_flight} in flight{older}"

    def shard(self, part: StagePart, facts: PartFacts, tables: StrategyTables) -> PartSharding:
        classes = facts.classes
        problem = ClassProblem(classes, tables)
        # The shortest sharding is a solution of this problem, too, and often close to the best.
        start = tuple(int(self.plain.choice[node]) for node in classes.members.tolist())
        held = self._at_peak(facts, tables)
        solution = problem.solve(GAP, start, held, self.byte_seconds)
        if not solution.choice:
            return PartSharding((), ())
        return self._with_copies(facts, tables, problem.spread(solution.choice))

    def _with_copies(
        self, facts: PartFacts, tables: StrategyTables, choice: tuple[int, ...]
    ) -> PartSharding:
        """Copies that are held at the peak for readers far apart, as gathered weights are from
        forward to backward, are kept, or dropped and made anew, whichever costs less."""
        kept = sharding_of(facts, tables, choice)
        waiting = ShardedPart(facts, tables, choice, ()).copied_at_peak(self.in_flight)
        if not waiting:
            return kept
        dropped = sharding_of(facts, tables, choice, (waiting,))

        def costs(sharding: PartSharding) -> float:
            part = ShardedPart(facts, tables, choice, sharding.transient)
            held = int(part.live_bytes(copies=True, in_flight=self.in_flight).max())
            return sum(sharding.fragment_seconds) + self.byte_seconds * held

        return min(kept, dropped, key=costs)

    def _at_peak(self, facts: PartFacts, tables: StrategyTables) -> list[tuple[int, int]]:
        """What a device holds at the position where the shortest sharding, without copies of
        operands, holds most: tensors, and of how many microbatches."""
        live_bytes = ShardedPart(facts, tables, self.plain.choice, self.plain.transient).live_bytes(
            copies=False, in_flight=self.in_flight
        )
        peak = int(live_bytes.argmax()) if live_bytes.size else 0
        lives = [
            *((live, 1) for live in facts.lifetimes),
            *((live, self.in_flight - 1) for live in facts.further),
        ]
        held = [
            (live.tensor, count)
            for live, count in lives
            if count and live.start <= peak < live.stop
        ]
        older = [(tensor, self.versions) for tensor in sorted(facts.part.weights)]
        return held + older * bool(self.versions)
