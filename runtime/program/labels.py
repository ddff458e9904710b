"""What a RUN is in the plan, as a label for people and back as a task of the schedule."""

from __future__ import annotations

import re

from shardopt.schedule.tasks import ONCE, Task, TaskKind

KIND_OF_TASK = {
    TaskKind.FORWARD: "fwd",
    TaskKind.BACKWARD: "bwd",
    TaskKind.BACKWARD_INPUT: "bwd_input",
    TaskKind.BACKWARD_WEIGHT: "bwd_weight",
    TaskKind.UPDATE: "update",
}
_TASK_OF_KIND = {name: kind for kind, name in KIND_OF_TASK.items()}
_LABEL = re.compile(r"(?P<kind>\w+) stage (?P<stage>\d+)(?: microbatch (?P<microbatch>\d+))?")


def label_of(kind: str, stage: int, microbatch: int = ONCE) -> str:
    return f"{kind} stage {stage}" + ("" if microbatch == ONCE else f" microbatch {microbatch}")


def task_of(label: str) -> Task | None:
    """None for what no schedule orders: a prologue, or a label of another form."""
    match = _LABEL.fullmatch(label)
    if match is None or match["kind"] not in _TASK_OF_KIND:
        return None
    kind = _TASK_OF_KIND[match["kind"]]
    if kind.runs_once == (match["microbatch"] is not None):
        return None
    return Task(kind, int(match["stage"]), int(match["microbatch"] or ONCE))
