"""Checkpoints of a run, every so many steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shardopt.runtime.state.checkpoint_folder import CheckpointFolder, abandon, checkpoints
from shardopt.runtime.state.manifest import Manifest
from shardopt.support.errors import UserError


@dataclass(frozen=True)
class CheckpointOptions:
    """A checkpoint in `folder` after every `every` steps, of which the newest `keep` stay."""

    folder: Path
    every: int
    keep: int = 3

    def __post_init__(self) -> None:
        if self.every < 1 or self.keep < 1:
            raise UserError(
                "expected a checkpoint every 1 or more steps and to keep 1 or more, found "
                f"{self.every} and {self.keep}"
            )


class PeriodicCheckpoints:
    """Writes the checkpoints of one run; nobody else may write to the folder until `close`. Raises
    UserError."""

    def __init__(self, options: CheckpointOptions) -> None:
        self._options = options
        self._folder = CheckpointFolder(options.folder, options.keep)
        self._begun = False

    def before_step(self, steps_done: int) -> None:
        """Raises UserError where the first step would start behind what has been reached: two
        histories would mix."""
        if self._begun:
            return
        complete = checkpoints(self._options.folder)
        if complete and complete[-1][0] > steps_done:
            raise UserError(
                f"'{self._options.folder}' holds a checkpoint of step {complete[-1][0]}, this run "
                "is "
                "at step "
                f"{steps_done}: resume from it, or choose another folder"
            )
        self._begun = True

    def after_step(self, steps_done: int, save_into: Callable[[Path, int], Manifest]) -> None:
        if steps_done % self._options.every:
            return
        writing = self._folder.begin()
        try:
            manifest = save_into(writing, steps_done)
        except BaseException:
            abandon(writing)
            raise
        self._folder.commit(writing, manifest)

    def close(self) -> None:
        self._folder.close()
