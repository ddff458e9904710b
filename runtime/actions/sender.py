"""The threads of a worker on which results are awaited, read and sent while the worker itself goes
on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

from shardopt.runtime.errors import Cancelled


class _Send:
    """One message under way. The lock is held until it is done with."""

    __slots__ = ("_done", "_error", "_work", "buffers", "target")

    def __init__(self, target: str, buffers: Iterable[int], work: Callable[[], None]) -> None:
        self.target, self.buffers = target, frozenset(buffers)
        self._work: Callable[[], None] | None = work
        self._error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def run(self) -> None:
        assert self._work is not None
        try:
            self._work()
        except BaseException as error:
            self._error = error
        self._work = None  # with it go the arrays that it read
        self._done.release()

    def drop(self) -> None:
        self._error = Cancelled("the worker is closed")
        self._work = None
        self._done.release()

    @property
    def is_done(self) -> bool:
        return not self._done.locked()

    def settle(self) -> None:
        with self._done:
            return

    def wait(self) -> None:
        self.settle()
        if self._error is not None:
            raise self._error


class Waitable(Protocol):
    """Something that reads buffers on a device."""

    def wait(self) -> None: ...

    @property
    def is_done(self) -> bool: ...


class _Reading:
    """What no thread of the sender does, but must be waited for like what they do."""

    target = None

    def __init__(self, buffers: Iterable[int], reading: Waitable) -> None:
        self.buffers, self._reading = frozenset(buffers), reading

    @property
    def is_done(self) -> bool:
        return self._reading.is_done

    def wait(self) -> None:
        self._reading.wait()

    def settle(self) -> None:
        with suppress(Exception):
            self.wait()


class _Lane:
    """A thread, and what it has to do."""

    def __init__(self, name: str) -> None:
        self._sends: SimpleQueue[_Send | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, send: _Send) -> None:
        self._sends.put(send)

    def close(self) -> None:
        # First, so that what is still queued is dropped, and not sent to workers that may be gone.
        self._closed = True
        self._sends.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (send := self._sends.get()) is not None:
            if self._closed:
                send.drop()
            else:
                send.run()
            del send  # or it would live until the next one comes


class Sender:
    """Sends to one worker run one after the other, in the order in which they are given; those to
    another wait neither for a slow receiver nor for an array that is not theirs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lanes: dict[str, _Lane] = {}
        self._sends: list[_Send | _Reading] = []

    def submit(self, target: str, buffers: Iterable[int], work: Callable[[], None]) -> None:
        lane = self._lanes.get(target)
        if lane is None:
            lane = self._lanes[target] = _Lane(f"send-{self._name}-{target}")
        send = _Send(target, buffers, work)
        self._sends.append(send)
        lane.put(send)

    def track(self, buffers: Iterable[int], reading: Waitable) -> None:
        """Wait for this, too, where the buffers count."""
        self._sends.append(_Reading(buffers, reading))

    def wait_for(self, buffers: frozenset[int]) -> None:
        """A buffer must have been read before an executable may write over it. Raises what a send
        of one raised."""
        for send in self._sends:
            if not buffers.isdisjoint(send.buffers):
                send.wait()

    @property
    def pending(self) -> int:
        """Sends that are not through; any thread may ask."""
        return sum(not send.is_done for send in self._sends.copy())

    @property
    def targets(self) -> frozenset[str]:
        """Workers to whom a thread has something to send yet; any thread may ask."""
        sends = self._sends.copy()
        return frozenset(each.target for each in sends if each.target and not each.is_done)

    def drain(self) -> None:
        """Wait for all sends. Raises what the first one raised."""
        try:
            for send in self._sends:
                send.wait()
        finally:
            # Only now: until they are through they are pending, to whoever asks.
            self._sends = []

    def flush(self) -> None:
        """Wait until all sends are done with, whatever became of them."""
        for send in self._sends:
            send.settle()

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
