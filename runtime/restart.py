"""A run of many steps that starts again, from its last checkpoint, when a mesh fails, and leaves
out steps that are not to count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from shardopt.runtime.errors import MeshError
from shardopt.runtime.run import Outputs, Run
from shardopt.runtime.state.checkpoint_folder import find_checkpoint, newest
from shardopt.runtime.state.places import Place
from shardopt.support.errors import UserError

# After so many in a row it is the state that is damaged, not what the steps were given.
_MOST_LEFT_OUT = 3


class LeaveOut(Exception):
    """Raised by `inspect` of `run_steps` for a step that is not to count. Its message says why."""


@dataclass(frozen=True)
class Recovery:
    """What becomes of a run that fails: it starts again `restarts` times, from the newest of its
    `checkpoints`; with `resume`, the first start does, too, or from the checkpoint or folder that
    `source` names. `notice` hears of an error that is followed by another attempt, and of the step
    that this one starts at, `resumed` of the checkpoint and step that the first start begins at,
    `left_out`, in words, of steps that do not count."""

    checkpoints: Place | None = None
    resume: bool = False
    restarts: int = 0
    notice: Callable[[MeshError, int], None] = lambda error, step: None
    source: Place | None = None
    resumed: Callable[[Place, int], None] = lambda checkpoint, step: None
    left_out: Callable[[str], None] = lambda text: None

    def first(self) -> Place | None:
        """Where the first start begins."""
        return self._newest() if self.resume and self.source is None else self.source

    def later(self) -> Place | None:
        """Where other starts begin."""
        return self._newest() or self.first()

    def _newest(self) -> Place | None:
        return None if self.checkpoints is None else newest(self.checkpoints)


# The first failure is that of the run.
NO_RECOVERY = Recovery()


def run_steps(
    start: Callable[[int], Run],
    begin: Callable[[Run], None],
    steps: int,
    *,
    feed: Callable[[int], Mapping[int, np.ndarray]] = lambda step: {},
    inspect: Callable[[Run, int, Outputs], None] = lambda run, step, outputs: None,
    after: Callable[[Run, int, Outputs], None] = lambda run, step, outputs: None,
    stop: Callable[[], bool] = lambda: False,
    finish: Callable[[Run], None] = lambda run: None,
    failed: Callable[[Run], None] = lambda run: None,
    recovery: Recovery = NO_RECOVERY,
) -> int:
    """Run until `steps` steps are done, or until `stop` says so after one, and `finish`; how many
    are done. A run that is stopped leaves a checkpoint, if it writes any.

    `start(k)` opens the run of attempt k (with the same folder of checkpoints); `begin` gives all
    arguments their first values, of which the state is replaced by the newest checkpoint, in later
    attempts or with `recovery.resume`. Step s is given `feed(s)` and its outputs go to `inspect`,
    before a checkpoint is begun, and to `after`, which both see a step a second time when it is
    run a second time. What `feed` gives may depend on nothing but the step: then the state comes
    out as if nothing had happened, bit for bit.

    Where `inspect` raises `LeaveOut`, the state goes back to the newest checkpoint, or to its first
    values, and the steps since then run again. Left out, and counted without being run, is that
    step, or one before it that gave good results and left state that is not finite.

    A run that fails or is interrupted is shown to `failed` before it is closed.

    Raises the MeshError of the last attempt, UserError, also for three steps in a row that are left
    out."""
    steps_left_out = _LeftOut(inspect, recovery.left_out)
    for attempt in range(recovery.restarts + 1):
        try:
            with start(attempt) as run, _telling(run, failed):
                # Also what no checkpoint holds needs a first value: arguments that are not state.
                begin(run)
                checkpoint = recovery.later() if attempt else recovery.first()
                if checkpoint is not None:
                    run.restore(checkpoint)
                    if not attempt:
                        recovery.resumed(checkpoint, run.steps_done)
                while run.steps_done < steps and not stop():
                    step = run.steps_done
                    if step in steps_left_out:
                        run.leave_out()
                        continue
                    try:
                        outputs = run.step(
                            feed(step), inspect=partial(steps_left_out.inspect, run, step)
                        )
                    except LeaveOut as reason:
                        steps_left_out.add(step, reason)
                        _go_back(run, begin, recovery)
                        continue
                    after(run, step, outputs)
                if run.steps_done < steps and recovery.checkpoints is not None:
                    run.save_checkpoint()
                finish(run)
                return run.steps_done
        except MeshError as error:
            if attempt == recovery.restarts:
                raise
            checkpoint = recovery.later()
            recovery.notice(error, 0 if checkpoint is None else find_checkpoint(checkpoint)[1].step)
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def _telling(run: Run, failed: Callable[[Run], None]) -> Iterator[None]:
    try:
        yield
    except (MeshError, KeyboardInterrupt):
        failed(run)
        raise


class _LeftOut:
    """The steps that do not count.

    A step may give good results and leave numbers in the state that are not finite: the next one
    shows it. So when a step is left out, the state is looked at after each of those before it that
    run again, and a step that damages it is left out in the place of the one that showed it."""

    def __init__(
        self, inspect: Callable[[Run, int, Outputs], None], tell: Callable[[str], None]
    ) -> None:
        self._inspect, self._tell = inspect, tell
        self._steps: set[int] = set()
        # Steps before this one run a second time.
        self._suspect = 0

    def __contains__(self, step: int) -> bool:
        return step in self._steps

    def inspect(self, run: Run, step: int, outputs: Outputs) -> None:
        """Raises LeaveOut."""
        self._inspect(run, step, outputs)
        if step < self._suspect and (names := run.nonfinite_state()):
            raise LeaveOut(f"it leaves '{names[0]}' with values that are not finite")

    def add(self, step: int, reason: LeaveOut) -> None:
        """Raises UserError for the third step in a row."""
        instead = ""
        if step < self._suspect:
            self._steps.discard(self._suspect)
            instead = f" instead of step {self._suspect}"
        self._steps.add(step)
        self._tell(f"step {step} is left out{instead}: {reason}")
        self._suspect = step
        first = step - _MOST_LEFT_OUT + 1
        if self._steps.issuperset(range(first, step + 1)):
            raise UserError(
                f"steps {first} to {step} would all be left out, the last one because {reason}: "
                "the state before them is damaged already"
            ) from reason


def _go_back(run: Run, begin: Callable[[Run], None], recovery: Recovery) -> None:
    run.settle_checkpoints()
    begin(run)
    checkpoint = recovery.later()
    if checkpoint is None:
        run.steps_done = 0
    else:
        run.restore(checkpoint)
