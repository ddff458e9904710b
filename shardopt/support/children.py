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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Generic, NoReturn, TypeVar

from shardopt.support.errors import UserError
from shardopt.support.progress import watching
from shardopt.support.spans import Seconds, add_spans, collecting

T = TypeVar("T")

# What a piece of work returned, and what it raised, one of them None.
_Outcome = tuple[Any, Exception | None]

_may_fork = False
# Children that do pieces of work which this process will wait for.
_helpers: list[Beside[Any]] = []
# Bytes of a number in a queue, of which a pipe holds 64 KiB at least.
_WIDTH = 2


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
    connection.send_bytes(pickle.dumps(_outcome(work)))


def _outcome(work: Callable[[], object]) -> _Outcome:
    try:
        return work(), None
    except Exception as error:
        # Where it was is not in what a child sends.
        if not _may_fork and not isinstance(error, UserError):
            error.add_note(traceback.format_exc())
        return None, error


class Beside(Generic[T]):
    """Work that a child does from now on; where the system ends the child, `instead` is done here,
    by default the work itself."""

    def __init__(self, work: Callable[[], T], instead: Callable[[], T] | None = None) -> None:
        def measured() -> tuple[T, dict[str, Seconds]]:
            with collecting() as spans:
                return work(), spans

        self._instead = instead or work
        self._child = Child(lambda connection: send_answer(measured, connection))

    def is_done(self) -> bool:
        """Whether the result is there to be asked for."""
        return self._child.connection.poll()

    def end(self) -> None:
        """Nobody wants the result any more."""
        self._child.end()

    def result(self) -> T:
        """What the work returns or raises; to be asked for once."""
        try:
            answer, error = self._child.connection.recv()
        except (EOFError, OSError):  # the system has ended it
            return self._instead()
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
    beside it where there are cores for them; who is done takes the next piece."""
    at_work = sum(not helper.is_done() for helper in _helpers)
    count = min(cores() - 1 - at_work, len(works) - 1) if can_fork() else 0
    if count <= 0:
        return [work() for work in works]
    first = len(_helpers)
    queue = _Queue(len(works))
    try:
        for _ in range(count):
            _helpers.append(Beside(partial(_take, works, queue), instead=dict))
        done = _take(works, queue)
        while len(_helpers) > first:
            done |= _helpers.pop().result()
    finally:
        for helper in _helpers[first:]:  # of an interrupt
            helper.end()
        del _helpers[first:]
        queue.close()
    return [_value(done, number, work) for number, work in enumerate(works)]


def _take(works: Sequence[Callable[[], object]], queue: _Queue) -> dict[int, _Outcome]:
    """Do what is left in the queue; with the first error no other piece is begun."""
    done: dict[int, _Outcome] = {}
    for number in queue:
        done[number] = _outcome(works[number])
        if done[number][1] is not None:
            queue.empty()
    return done


def _value(done: Mapping[int, _Outcome], number: int, work: Callable[[], Any]) -> Any:
    """What a piece of work returned, or raised; one that a child took along is done here."""
    if number not in done:
        return work()
    value, error = done[number]
    if error is not None:
        raise error
    return value


class _Queue:
    """The numbers from 0 up to `length`, each for one of the processes that share the queue."""

    def __init__(self, length: int) -> None:
        # Reads from a pipe exclude each other, and whoever is killed in one holds no lock.
        self._take, put = os.pipe()
        with os.fdopen(put, "wb") as pipe:
            pipe.write(b"".join(number.to_bytes(_WIDTH) for number in range(length)))

    def __iter__(self) -> Iterator[int]:
        while number := os.read(self._take, _WIDTH):
            yield int.from_bytes(number)

    def empty(self) -> None:
        for _ in self:
            pass

    def close(self) -> None:
        os.close(self._take)
