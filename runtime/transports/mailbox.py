"""Where messages wait for the RECV that wants them, and how a blocked worker is woken when the step
has failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shardopt.runtime.transports.buffers import BufferPool
from shardopt.runtime.transports.landing import Arrival, Landing

# The receiver's shards, in the order of its landing; None: no piece is for it.
Payload = Sequence[np.ndarray | None]


@dataclass(frozen=True)
class LinkStates:
    """What the links of one worker say of themselves, at one moment.

    sending         workers to whom bytes are under way that have not reached them
    quiet           workers of whom nothing has come that is not a whole message in the mailbox
    received_bytes  of all messages so far, also of those that are not complete
    """

    sending: frozenset[str]
    quiet: frozenset[str]
    received_bytes: int = 0


class Transport(Protocol):
    """How one worker reaches the others."""

    mailbox: Mailbox

    def links(self) -> LinkStates:
        """Any thread may ask. Raises nothing."""

    def send(
        self, target: str, step: int, tag: int, pieces: Sequence[np.ndarray], *, keep: bool = False
    ) -> None:
        """Deliver the pieces, which may be views of device memory, to the mailbox of worker
        `target`. With `keep`, nobody writes to them ever again, and a receiver in the same process
        may hold on to them."""

    def close(self) -> None: ...


class Mailbox:
    """Messages by (step, tag). Any thread may deliver; the worker's thread takes.

    What the list of the worker receives is told beforehand, by tag, so that bytes can be written
    where they belong while the worker is still busy with something else."""

    def __init__(self) -> None:
        self.pool = BufferPool()
        self._landings: dict[int, Landing] = {}
        self._arrivals: dict[tuple[int, int], Arrival] = {}
        self._messages: dict[tuple[int, int], Payload] = {}
        self._failure: BaseException | None = None
        self._on_cancel: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._changes = 0  # goes up with everything that comes

    def expect(self, tag: int, landing: Landing) -> None:
        """In every step, a message of this tag lands like this."""
        with self._changed:
            self._landings[tag] = landing
            self._changed.notify_all()

    def open(self, source: str, step: int, tag: int) -> Arrival:
        """Where the part of `source` of a message is to be written. Raises LookupError when nobody
        wants it."""
        with self._changed:
            landing = self._landings.get(tag)
            if landing is None or source not in landing.pieces:
                raise LookupError(
                    f"worker '{source}' sent message {tag} of step {step}, which nobody expects"
                )
            arrival = self._arrivals.get((step, tag))
            if arrival is None:
                arrival = self._arrivals[step, tag] = Arrival(landing, self.pool)
            return arrival

    def close(self, source: str, step: int, tag: int) -> None:
        """The part of `source` is all there; the message can be taken when those of all others
        are."""
        arrival = self._arrivals[step, tag]
        shards = arrival.finish(source)
        if arrival.landing.streams:
            self._tell()
        elif shards is not None:
            del self._arrivals[step, tag]
            self.put(step, tag, shards)

    def landed(self, source: str, step: int, tag: int) -> None:
        """One more piece of a message that streams is there."""
        self._arrivals[step, tag].land(source)
        self._tell()

    def deliver(
        self, source: str, step: int, tag: int, pieces: Sequence[np.ndarray], *, keep: bool = False
    ) -> None:
        """A part that is in the memory of this process; see `Transport.send`."""
        self.open(source, step, tag).adopt(source, pieces, keep=keep)
        self.close(source, step, tag)

    def put(self, step: int, tag: int, payload: Payload) -> None:
        with self._changed:
            self._messages[step, tag] = payload
            self._changes += 1
            self._changed.notify_all()

    def take(self, step: int, tag: int) -> Payload:
        """Wait for the message. Raises what `cancel` was given."""
        with self._changed:
            while (step, tag) not in self._messages:
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()
            return self._messages.pop((step, tag))

    def stream(self, step: int, tag: int) -> Arrival:
        """A message that streams, which may not have begun to come; `end` when it is through."""
        with self._changed:
            arrival = self._arrivals.get((step, tag))
            if arrival is None:
                arrival = self._arrivals[step, tag] = Arrival(self._landings[tag], self.pool)
            return arrival

    def end(self, step: int, tag: int) -> None:
        with self._changed:
            del self._arrivals[step, tag]

    def has(self, step: int, tag: int) -> bool:
        """Whether `take` would not wait. Raises what `cancel` was given if it would."""
        with self._changed:
            there = (step, tag) in self._messages
        if not there:
            self.check()
        return there

    def until(
        self, ready: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Wait for something that comes; `meanwhile` is done first, and whenever anything has come.
        Raises what `cancel` was given."""
        while True:
            # Before it is looked at: what comes while it is wakes the wait below.
            seen = self._changes
            meanwhile()
            if ready():
                return
            with self._changed:
                while self._changes == seen:
                    self.check()
                    self._changed.wait()

    def _tell(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def missing(self, step: int, tag: int) -> tuple[str, ...]:
        """Workers whose part of a message is not there."""
        with self._changed:
            landing = self._landings.get(tag)
            if landing is None or (step, tag) in self._messages:
                return ()
            arrival = self._arrivals.get((step, tag))
        return tuple(landing.pieces) if arrival is None else arrival.missing

    def cancel(self, failure: BaseException) -> None:
        """Make every present and later `take` of a message that is not there raise; the first
        failure stays."""
        with self._changed:
            first, self._failure = self._failure is None, self._failure or failure
            self._changed.notify_all()
        # Without the lock, which threads that an action wakes may want.
        if first:
            for action in self._on_cancel:
                action()

    def on_cancel(self, action: Callable[[], None]) -> None:
        """Also do this, once, on the thread that cancels: for what waits elsewhere than in
        `take`."""
        self._on_cancel.append(action)

    def check(self) -> None:
        """Raises what `cancel` was given."""
        if self._failure is not None:
            raise self._failure
