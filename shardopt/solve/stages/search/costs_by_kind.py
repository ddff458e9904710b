"""The costs of the stages of one step under all schedules.

Schedules differ in how stages share the meshes, and their memory with them. What stages and layers
cost is the same, so that whatever was found for one schedule serves the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from shardopt.caching.memory import remembered
from shardopt.caching.store import key_of
from shardopt.schedule.schedules import Homes, ScheduleKind, model_homes
from shardopt.solve.stages.candidates import CandidateProblem
from shardopt.solve.stages.costs.lazy_costs import LazyStageCosts

# Stages a mesh in the list of tasks and in the model, on which meshes they are, and how old weights
# may be.
_Sharing = tuple[int, int, Homes, Callable[[int], tuple[int, ...]] | None]


@dataclass(eq=False)
class CostsByKind:
    """`alone` is the problem of stages with meshes of their own."""

    alone: CandidateProblem
    _known: dict[_Sharing, LazyStageCosts] = field(default_factory=dict)

    def of(self, kind: ScheduleKind) -> LazyStageCosts:
        """The costs of stages under schedules of this kind. Stages of one mesh share its memory and
        that of its host: each gets an equal part."""
        each = kind.stages_per_mesh
        sharing = each, kind.model_stages_per_mesh, kind.homes, kind.weight_ages
        if sharing not in self._known:
            problem = replace(
                self.alone,
                memory_limit_bytes=_shares(self.alone.memory_limit_bytes, each),
                host_limit_bytes=_shares(self.alone.host_limit_bytes, each),
                stages_per_mesh=kind.model_stages_per_mesh,
                weight_ages=kind.weight_ages,
                homes=partial(model_homes, kind.name) if each > 1 else None,
            )
            first = next(iter(self._known.values()), None)
            self._known[sharing] = (
                LazyStageCosts(problem) if first is None else first.within(problem)
            )
        return self._known[sharing]


def costs_by_kind(
    content: Callable[[], Sequence[str | bytes]], read: Callable[[], CandidateProblem]
) -> CostsByKind:
    """The costs of the problem that `read` finds, with all that was found for the last one of the
    same `content` while a search goes on (`shardopt.caching.memory`)."""
    return remembered("stage costs", lambda: key_of(*content()), lambda: CostsByKind(read()))


def _shares(limits: tuple[int | None, ...], each: int) -> tuple[int | None, ...]:
    return tuple(None if limit is None else limit // each for limit in limits)
