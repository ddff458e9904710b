"""The schedules by name: each builder writes, per mesh, the order in which its tasks run.

All schedules run the microbatches of one kind in ascending order, so gradients are summed in the same order and two
schedules give bit-equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType

from shardopt.cost.errors import UserError
from shardopt.schedule.memory import peak_in_flight
from shardopt.schedule.tasks import Schedule, Task, TaskKind


def _forwards(stage: int, num_microbatches: int) -> tuple[Task, ...]:
    return tuple(Task(TaskKind.FORWARD, stage, microbatch) for microbatch in range(num_microbatches))


def _backwards(stage: int, num_microbatches: int) -> tuple[Task, ...]:
    return tuple(Task(TaskKind.BACKWARD, stage, microbatch) for microbatch in range(num_microbatches))


def gpipe(num_stages: int, num_microbatches: int) -> Schedule:
    """All forwards, then all backwards (arXiv 1811.06965): every microbatch's activations are alive at once."""
    tasks = tuple(
        _forwards(stage, num_microbatches) + _backwards(stage, num_microbatches) for stage in range(num_stages)
    )
    return Schedule("gpipe", num_microbatches, tuple(range(num_stages)), tasks)


def one_f_one_b(num_stages: int, num_microbatches: int) -> Schedule:
    """1F1B (PipeDream-flush, arXiv 2006.09503): as fast as GPipe, at most `num_stages - s` in flight on stage s.

    Stage s runs as many forwards ahead as there are stages after it, then one forward and one backward in turn.
    """
    tasks = []
    for stage in range(num_stages):
        ahead = min(num_stages - stage - 1, num_microbatches)
        forwards, backwards = _forwards(stage, num_microbatches), _backwards(stage, num_microbatches)
        steady = tuple(task for pair in zip(forwards[ahead:], backwards, strict=False) for task in pair)
        tasks.append(forwards[:ahead] + steady + backwards[num_microbatches - ahead :])
    return Schedule("1f1b", num_microbatches, tuple(range(num_stages)), tuple(tasks))


def inference(num_stages: int, num_microbatches: int) -> Schedule:
    """Forwards only."""
    tasks = tuple(_forwards(stage, num_microbatches) for stage in range(num_stages))
    return Schedule("inference", num_microbatches, tuple(range(num_stages)), tasks)


ScheduleBuilder = Callable[[int, int], Schedule]

SCHEDULES: Mapping[str, ScheduleBuilder] = MappingProxyType(
    {"gpipe": gpipe, "1f1b": one_f_one_b, "inference": inference}
)


def build_schedule(name: str, num_stages: int, num_microbatches: int) -> Schedule:
    """Build the schedule called `name`; raises UserError for an unknown name or a count below 1."""
    if name not in SCHEDULES:
        close = get_close_matches(name.lower(), SCHEDULES, n=1, cutoff=0.5)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise UserError(f"unknown schedule '{name}': {hint}known schedules are {', '.join(SCHEDULES)}")
    if num_stages < 1 or num_microbatches < 1:
        raise UserError(
            f"schedule '{name}' needs at least 1 stage and 1 microbatch, got {num_stages} and {num_microbatches}"
        )
    return SCHEDULES[name](num_stages, num_microbatches)


@lru_cache(maxsize=1024)
def in_flight(name: str, num_stages: int, num_microbatches: int) -> tuple[int, ...]:
    """Per stage, the largest number of microbatches whose activations are alive at once, counted on the task list.

    Cached because the stage DP asks for the same few schedules again and again.
    """
    schedule = build_schedule(name, num_stages, num_microbatches)
    return tuple(
        peak_in_flight([task for task in schedule.tasks[mesh] if task.stage == stage])
        for stage, mesh in enumerate(schedule.stage_to_mesh)
    )
