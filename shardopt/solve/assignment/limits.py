"""How long a search may go on: by the clock, by what it touches, and until it is close enough.

Plans are sought within work alone: a search that a clock ends gives another plan on a busy
machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import monotonic

# Work, in table entries touched. Compiled code does about three times as much in a second of a core
# of its own, so that a time limit is kept on a busy machine, and with it the promise that equal
# inputs give equal answers.
WORK_PER_SECOND = 250_000_000
DEFAULT_WORK_SECONDS = 30.0


@dataclass(frozen=True)
class SearchLimits:
    """`seconds` by the clock (None: no limit), a relative `gap_tolerance` at which a solution is
    good enough, and `work` in table entries. Without work, messages and forests have as much as
    `seconds` are worth, or a fixed amount, and integer programs have the clock alone."""

    seconds: float | None = None
    gap_tolerance: float = 0.0
    work: int | None = None

    @property
    def budget(self) -> int:
        """Table entries that may be touched."""
        if self.work is not None:
            return self.work
        return work_of(DEFAULT_WORK_SECONDS if self.seconds is None else self.seconds)

    def since(self, begin: float) -> SearchLimits:
        """What is left of the seconds after the `monotonic` time `begin`. The work stays that of
        all the seconds, and with it the answer, however long the beginning took."""
        if self.seconds is None:
            return self
        left = max(self.seconds - (monotonic() - begin), 0.0)
        return replace(self, seconds=left, work=self.budget)


def work_of(seconds: float) -> int:
    """Table entries that a core of its own touches within the `seconds`, with room to spare."""
    return int(WORK_PER_SECOND * seconds)


NO_LIMITS = SearchLimits()
