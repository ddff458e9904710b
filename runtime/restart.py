"""A run of many steps that starts again, from its last checkpoint, when a mesh fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardopt.runtime.errors import MeshError
from shardopt.runtime.run import Outputs, Run
from shardopt.runtime.state.checkpoint_folder import newest


@dataclass(frozen=True)
class Recovery:
    """What becomes of a run that fails: it starts again `restarts` times, from the newest of its
    `checkpoints`; with `resume`, the first start does, too. `notice` hears of an error that is
    followed by another attempt, and of the step that this one starts at."""

    checkpoints: Path | None = None
    resume: bool = False
    restarts: int = 0
    notice: Callable[[MeshError, int], None] = lambda error, step: None

    def newest(self) -> Path | None:
        return None if self.checkpoints is None else newest(self.checkpoints)


# The first failure is that of the run.
NO_RECOVERY = Recovery()


def run_steps(
    start: Callable[[int], Run],
    begin: Callable[[Run], None],
    steps: int,
    *,
    feed: Callable[[int], Mapping[int, np.ndarray]] = lambda step: {},
    after: Callable[[Run, int, Outputs], None] = lambda run, step, outputs: None,
    finish: Callable[[Run], None] = lambda run: None,
    recovery: Recovery = Recovery(),
) -> None:
    """Run until `steps` steps are done, and `finish`.

    `start(k)` opens the run of attempt k (with the same folder of checkpoints); `begin` gives all
    arguments their first values, of which the state is replaced by the newest checkpoint, in later
    attempts or with `recovery.resume`. Step s is given `feed(s)` and its outputs go to `after`,
    which sees a step a second time when it is run a second time. What `feed` gives may depend on
    nothing but the step: then the state comes out as if nothing had happened, bit for bit. Raises
    the MeshError of the last attempt, UserError."""
    for attempt in range(recovery.restarts + 1):
        try:
            with start(attempt) as run:
                # Also what no checkpoint holds needs a first value: arguments that are not state.
                begin(run)
                checkpoint = recovery.newest() if recovery.resume or attempt else None
                if checkpoint is not None:
                    run.restore(checkpoint)
                while run.steps_done < steps:
                    step = run.steps_done
                    after(run, step, run.step(feed(step)))
                finish(run)
            return
        except MeshError as error:
            if attempt == recovery.restarts:
                raise
            checkpoint = recovery.newest()
            recovery.notice(
                error, 0 if checkpoint is None else int(checkpoint.name.removeprefix("step-"))
            )
