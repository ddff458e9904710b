"""Schedules with one stage on every mesh: all forwards first, or one forward and one backward in
turn."""

from __future__ import annotations

from shardopt.schedule.tasks import Schedule, Task, TaskKind


def gpipe(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """All forwards, then all backwards (arXiv 1811.06965): every microbatch's activations are alive
    at once."""
    runs = range(num_microbatches)
    rows = (
        (
            *(Task(TaskKind.FORWARD, stage, i) for i in runs),
            *(Task(TaskKind.BACKWARD, stage, i) for i in runs),
        )
        for stage in range(num_stages)
    )
    return Schedule("gpipe", num_microbatches, tuple(range(num_stages)), tuple(rows))


def all_in_flight(num_stages: int, num_microbatches: int) -> tuple[int, ...]:
    """Microbatches in flight of each stage under GPipe."""
    return (num_microbatches,) * num_stages


def one_f_one_b(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """1F1B (PipeDream-flush, arXiv 2006.09503): as fast as GPipe, at most `num_stages - s` in
    flight on stage s."""
    return _in_turn("1f1b", num_stages, num_microbatches, _ahead(num_stages, 1))


def one_f_one_b_in_flight(num_stages: int, num_microbatches: int) -> tuple[int, ...]:
    """Microbatches in flight of each stage under 1F1B."""
    return tuple(min(ahead + 1, num_microbatches) for ahead in _ahead(num_stages, 1))


def eager_one_f_one_b(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """1F1B that runs twice as far ahead (arXiv 2211.05322, section 4), so that a transfer to the
    next stage and back overlaps with the forward of another microbatch; at most 2 (num_stages - s)
    - 1 in flight on stage s."""
    return _in_turn("eager-1f1b", num_stages, num_microbatches, _ahead(num_stages, 2))


def eager_in_flight(num_stages: int, num_microbatches: int) -> tuple[int, ...]:
    """Microbatches in flight of each stage under eager 1F1B."""
    return tuple(min(ahead + 1, num_microbatches) for ahead in _ahead(num_stages, 2))


def inference(num_stages: int, num_microbatches: int, num_meshes: int) -> Schedule:
    """Forwards only."""
    rows = (
        tuple(Task(TaskKind.FORWARD, stage, i) for i in range(num_microbatches))
        for stage in range(num_stages)
    )
    return Schedule("inference", num_microbatches, tuple(range(num_stages)), tuple(rows))


def _ahead(num_stages: int, times: int) -> list[int]:
    """Forwards that each stage runs before its first backward: `times` for every stage behind
    it."""
    return [times * (num_stages - stage - 1) for stage in range(num_stages)]


def _in_turn(name: str, num_stages: int, num_microbatches: int, ahead: list[int]) -> Schedule:
    """Stage s runs `ahead[s]` forwards, then one forward and one backward in turn, then the
    backwards left over."""
    rows = []
    for stage in range(num_stages):
        first = min(ahead[stage], num_microbatches)
        forwards = [Task(TaskKind.FORWARD, stage, i) for i in range(num_microbatches)]
        backwards = [Task(TaskKind.BACKWARD, stage, i) for i in range(num_microbatches)]
        steady = [task for pair in zip(forwards[first:], backwards, strict=False) for task in pair]
        rows.append((*forwards[:first], *steady, *backwards[num_microbatches - first :]))
    return Schedule(name, num_microbatches, tuple(range(num_stages)), tuple(rows))
