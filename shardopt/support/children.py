"""Children: copies of this process that work beside it, or in its place, with all that it knows.

Only a command may be copied (`may_fork`): no fork copies the threads that a program of the user
has, and what these were in the middle of stays so. A child has no children, says nothing, and ends
with its parent."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Generic, NoReturn, TypeVar

from shardopt.support.errors import UserError
from shardopt.support.progress import watching
from shardopt.support.spans import Seconds, add_spans, collecting

T = TypeVar("T")

_may_fork = False
# Children that work beside this process, whoever has asked for them.
_beside: list[Beside[Any]] = []


def may_fork() -> None:
    """This process is a command that has begun nothing yet: copies of it can work."""
    global _may_fork
    _may_fork = True


def can_fork() -> bool:
    """Whether this process may have children. One that has loaded JAX may not, as a command does
    that builds a model: no fork copies JAX's threads either."""
    return _may_fork and hasattr(os, "fork") and not _has_loaded_jax()


def _has_loaded_jax() -> bool:
    return "jax" in sys.modules


def cores() -> int:
    """How many processes can work at a time."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Child:
    """A copy of this process that runs `work`, which gets its end of a connection; ours is
    `connection`, at the end of file where the child has ended."""

    def __init__(self, work: Callable[[Connection], None]) -> None:
        self.connection, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._process = os.fork()
        if self._process == 0:
            self.connection.close()
            _become(work, theirs)
        theirs.close()

    def wait(self) -> int:
        """How it ended, as of `os.waitpid`."""
        self.connection.close()
        return os.waitpid(self._process, 0)[1]

    def end(self) -> None:
        """End it, whatever it does."""
        os.kill(self._process, signal.SIGKILL)
        self.wait()


def _become(work: Callable[[Connection], None], connection: Connection) -> NoReturn:
    """Leave without the exit handlers of the parent, whose streams may be in use."""
    global _may_fork
    _may_fork = False
    code = 1
    try:
        with watching(None):
            work(connection)
        code = 0
    except (EOFError, BrokenPipeError):  # nobody listens any more
        pass
    finally:
        os._exit(code)


def send_answer(work: Callable[[], object], connection: Connection) -> None:
    """Send what `work` returns and what it raises, one of them None."""
    try:
        answer: tuple[object, Exception | None] = (work(), None)
    except Exception as error:
        if not isinstance(error, UserError):  # where it was is not in what is sent
            error.add_note(traceback.format_exc())
        answer = (None, error)
    connection.send_bytes(pickle.dumps(answer))


class Beside(Generic[T]):
    """Work that a child does from now on."""

    def __init__(self, work: Callable[[], T]) -> None:
        def measured() -> tuple[T, dict[str, Seconds]]:
            with collecting() as spans:
                return work(), spans

        self._work = work
        self._child = Child(lambda connection: send_answer(measured, connection))
        _beside.append(self)

    def is_done(self) -> bool:
        """Whether the result is there to be asked for."""
        return self._child.connection.poll()

    def end(self) -> None:
        """Nobody wants the result any more."""
        _beside.remove(self)
        self._child.end()

    def result(self) -> T:
        """What the work returns or raises; to be asked for once."""
        _beside.remove(self)
        try:
            answer, error = self._child.connection.recv()
        except (EOFError, OSError):  # the system has ended it
            return self._work()
        finally:
            self._child.wait()
        if error is not None:
            raise error
        value, spans = answer
        add_spans(spans)
        return value


def results(works: Sequence[Callable[[], T]]) -> list[T]:
    """What several pieces of work return, in their order, or what the first of them raises that
    raises: each must return the same whoever does it. This process works, too, and children do
    beside it where there are cores for them."""
    children: dict[int, Beside[T]] = {}
    done: dict[int, T] = {}
    room = cores() - 1 if can_fork() else 0
    try:
        for number, work in enumerate(works):
            at_work = sum(not child.is_done() for child in _beside)
            if number + 1 < len(works) and at_work < room:
                children[number] = Beside(work)
            else:
                done[number] = work()
        return [
            children.pop(number).result() if number in children else done[number]
            for number in range(len(works))
        ]
    finally:  # of an error, or an interrupt
        for child in children.values():
            child.end()
