"""Checkpoints of a run, every so many steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shardopt.runtime.state.checkpoint_folder import (
    CheckpointFolder,
    NotWritten,
    abandon,
    checkpoints,
)
from shardopt.runtime.state.manifest import Manifest
from shardopt.runtime.state.places import Place, Where, place
from shardopt.support.errors import UserError


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


@dataclass(frozen=True)
class CheckpointOptions:
    """A checkpoint in `folder`, a path or the address of a store (`s3://bucket/run`), after every
    `every` steps, of which the newest `keep` stay.

    In the `background`, steps go on while the state is written; what they write over meanwhile is
    kept for it, at most one more copy of the state. A checkpoint is there some steps later, at the
    latest when the next one is begun or the run ends. With `finite`, state with numbers that are
    not finite becomes no checkpoint. `notice` hears of checkpoints that could not be written, which
    ends no run; by default they are a RuntimeWarning."""

    folder: Where
    every: int
    keep: int = 3
    background: bool = True
    finite: bool = False
    notice: Callable[[str], None] = _warn

    def __post_init__(self) -> None:
        if self.every < 1 or self.keep < 1:
            raise UserError(
                "expected a checkpoint every 1 or more steps and to keep 1 or more, found "
                f"{self.every} and {self.keep}"
            )


class SavedState(Protocol):
    """What `RunState` does for a checkpoint."""

    def start_saving(
        self, folder: Place, *, background: bool = False, finite: bool = False
    ) -> None: ...

    def saved(self, step: int, *, wait: bool = True) -> Manifest | None: ...


class PeriodicCheckpoints:
    """Writes the checkpoints of one run; nobody else may write to the folder until `close`. Raises
    UserError."""

    def __init__(self, options: CheckpointOptions) -> None:
        self._options = options
        self._folder = CheckpointFolder(place(options.folder), options.keep)
        for path in self._folder.incomplete():
            options.notice(f"'{path}' has no manifest: it is no checkpoint, and left out")
        self._begun = False
        # Steps done, and where the workers write.
        self._writing: tuple[int, Place] | None = None

    def before_step(self, steps_done: int) -> None:
        """Raises UserError where the first step would start behind what has been reached: two
        histories would mix."""
        if self._begun:
            return
        complete = checkpoints(self._folder.folder)
        if complete and complete[-1][0] > steps_done:
            raise UserError(
                f"'{self._options.folder}' holds a checkpoint of step {complete[-1][0]}, this run "
                f"is at step {steps_done}: resume from it, or choose another folder"
            )
        self._begun = True

    def after_step(self, steps_done: int, state: SavedState) -> None:
        """Raises UserError, MeshError."""
        self._commit(state, wait=False)
        if steps_done % self._options.every == 0:
            self._begin(steps_done, state)

    def write(self, steps_done: int, state: SavedState) -> None:
        """A checkpoint of now, unless there is one; it is there afterwards. Raises UserError,
        MeshError."""
        self.before_step(steps_done)
        self.settle(state)
        # A run that has resumed from it and done nothing since has it, too.
        if all(step != steps_done for step, _ in checkpoints(self._folder.folder)):
            self._begin(steps_done, state)
            self.settle(state)

    def settle(self, state: SavedState) -> None:
        """Wait for what is being written. Raises UserError, MeshError."""
        self._commit(state, wait=True)

    def close(self) -> None:
        """What is still being written comes to nothing."""
        if self._writing is not None:
            abandon(self._writing[1])
        self._folder.close()

    def _begin(self, steps_done: int, state: SavedState) -> None:
        self.settle(state)
        try:
            writing = self._folder.begin(steps_done)
        except NotWritten as error:
            self._tell(error)
            return
        self._writing = steps_done, writing
        background = self._options.background
        state.start_saving(writing, background=background, finite=self._options.finite)
        self._commit(state, wait=not background)

    def _commit(self, state: SavedState, *, wait: bool) -> None:
        if self._writing is None:
            return
        step, writing = self._writing
        try:
            manifest = state.saved(step, wait=wait)
            if manifest is None:
                return
            self._folder.commit(writing, manifest)
        except NotWritten as error:
            abandon(writing)
            self._tell(error)
        except UserError:
            self._writing = None  # told once
            abandon(writing)
            raise
        except BaseException:
            abandon(writing)
            raise
        self._writing = None

    def _tell(self, error: NotWritten) -> None:
        self._options.notice(f"{error}; the run goes on without it")
