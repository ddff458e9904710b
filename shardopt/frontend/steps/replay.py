"""How the workers come to their state a second time, where that is on the workers alone.

    begin ──▶ step 0 ──▶ … ──▶ newest checkpoint ──▶ step 7 ──▶ step 8 ──▶ failure
              (forgotten)      restored              what they were given is repeated

A step depends on nothing but the state and what it is given, so that the same steps from the same
state come out the same, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from shardopt.runtime.run import Run
from shardopt.runtime.state.checkpoint_folder import checkpoints
from shardopt.runtime.state.ownership import state_arguments
from shardopt.runtime.state.periodic import CheckpointOptions
from shardopt.runtime.state.places import place
from shardopt.support.errors import UserError

Values = Mapping[int, np.ndarray]


@dataclass(frozen=True)
class _Given:
    """What a step was given: arguments by number."""

    step: int
    values: Values


class Replay:
    """What a session remembers of its steps since its newest checkpoint; without checkpoints, since
    its beginning."""

    def __init__(self, options: CheckpointOptions | None) -> None:
        self._options = options
        # Gives all state its first values; None once there is a checkpoint.
        self._begin: Callable[[Run], None] | None = None
        self._steps: list[_Given] = []
        self._settled: dict[int, np.ndarray] = {}  # what other arguments were before these steps

    def begin(self, begin: Callable[[Run], None], others: Values) -> None:
        """State was made anew, by `begin`, and arguments that are not state were given these."""
        self._begin, self._steps, self._settled = begin, [], dict(others)

    def add(self, run: Run, values: Values) -> None:
        """The step that the run has just done was given these."""
        self._steps.append(_Given(run.steps_done - 1, values))
        options = self._options
        # One is on the disk at the latest when the next is begun.
        if options is not None and run.steps_done % options.every == 0:
            written = checkpoints(place(options.folder))
            if written:
                self._forget(written[-1][0], set(state_arguments(run.program)))

    def onto(self, run: Run) -> dict[int, np.ndarray]:
        """Bring new workers to where the old ones were before the step that failed; what that one
        has to be given beside its own. Raises UserError, MeshError."""
        self._restore(run)
        pending = dict(self._settled)
        state = set(state_arguments(run.program))
        for given in self._steps:
            if given.step < run.steps_done:  # the checkpoint has what it did to the state
                pending |= {k: value for k, value in given.values.items() if k not in state}
            else:
                run.step({**pending, **given.values})
                pending.clear()
        return pending

    def _restore(self, run: Run) -> None:
        first = self._steps[0].step if self._steps else 0
        written = [] if self._options is None else checkpoints(place(self._options.folder))
        # An older one is of a training before this one.
        if written and (written[-1][0] > first or self._begin is None):
            run.restore(written[-1][1])
        elif self._begin is not None:
            self._begin(run)
            run.steps_done = first
        else:
            raise UserError("the checkpoint that the run would start again from is gone")

    def _forget(self, step: int, state: set[int]) -> None:
        """The steps before this one, whose state a checkpoint has."""
        before = [given for given in self._steps if given.step < step]
        if before:
            self._begin = None
        for given in before:
            self._settled |= {k: value for k, value in given.values.items() if k not in state}
        del self._steps[: len(before)]
