"""What says whether a candidate still shows the fault: the failure of its own pipeline, or a
command."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shardopt.reduce.candidate import Candidate
from shardopt.reduce.failure import Failure, failure_of
from shardopt.reduce.isolation import end_group, no_core_dumps

# Where the file goes in a command; without one it is the last argument.
FILE = "{}"
_TIMED_OUT = 124  # as of timeout(1)
_KILLED = 128  # and the number of the signal, as shells have it


class Test(Protocol):
    """Deterministic, and true for the input."""

    def __call__(self, candidate: Candidate) -> bool: ...


@dataclass(frozen=True)
class SameFailure:
    """The pipeline fails as it did, or with a message in which `pattern` is found."""

    expected: Failure
    seconds: float
    pattern: re.Pattern[str] | None = None

    def __call__(self, candidate: Candidate) -> bool:
        failure = failure_of(candidate, self.seconds)
        if failure is None:
            return False
        if self.pattern is not None:
            return self.pattern.search(failure.message) is not None
        return failure.is_like(self.expected)


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its status as a shell has it (128 and the number of a signal, 124 out
    of time), and what it printed."""

    status: int
    output: str


@dataclass(frozen=True)
class CommandTest:
    """A command with the candidate's file ends with `status`, and prints what `pattern` matches."""

    words: tuple[str, ...]
    seconds: float
    status: int = 0
    pattern: re.Pattern[str] | None = None

    def __call__(self, candidate: Candidate) -> bool:
        outcome = self.outcome(candidate)
        if outcome.status != self.status:
            return False
        return self.pattern is None or self.pattern.search(outcome.output) is not None

    def outcome(self, candidate: Candidate) -> Outcome:
        """Raises OSError for a command that cannot be started."""
        with tempfile.TemporaryDirectory(prefix="shardopt-reduce-") as folder:
            path = Path(folder) / "candidate.mlir"
            path.write_text(candidate.file_text, encoding="utf-8")
            return self._run(str(path))

    def _run(self, path: str) -> Outcome:
        words = [word.replace(FILE, path) for word in self.words]
        if words == list(self.words):
            words.append(path)
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=no_core_dumps,
        )
        try:
            output = process.communicate(timeout=self.seconds)[0]
        except subprocess.TimeoutExpired:
            end_group(process.pid)
            process.communicate()
            return Outcome(_TIMED_OUT, "")
        except BaseException:
            end_group(process.pid)
            process.wait()
            raise
        status = process.returncode
        text = output.decode(errors="replace")
        return Outcome(status if status >= 0 else _KILLED - status, text)


def is_executable(word: str) -> bool:
    """Whether a command of that name can be started from here."""
    from shutil import which

    return which(word) is not None or os.access(word, os.X_OK)
