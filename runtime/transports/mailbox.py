"""Where messages wait for the RECV that wants them, and how a blocked worker is woken when the step has failed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np

Payload = Sequence[np.ndarray] | bytearray  # pieces in route order, or their bytes one after the other


class Cancelled(Exception):
    """This worker was stopped because of a failure somewhere else: the cause, not this, is to be reported."""


class Transport(Protocol):
    """How one mesh reaches the others."""

    mailbox: Mailbox

    def send(self, target: str, step: int, tag: int, pieces: Sequence[np.ndarray]) -> None:
        """Deliver the pieces to the mailbox of mesh `target`; they may be views of device memory."""

    def close(self) -> None: ...


class Mailbox:
    """Messages by (step, tag). Any thread may put; the worker's thread takes."""

    def __init__(self) -> None:
        self._messages: dict[tuple[int, int], Payload] = {}
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def put(self, step: int, tag: int, payload: Payload) -> None:
        with self._changed:
            self._messages[step, tag] = payload
            self._changed.notify_all()

    def take(self, step: int, tag: int) -> Payload:
        """Wait for the message. Raises what `cancel` was given."""
        with self._changed:
            while (step, tag) not in self._messages:
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()
            return self._messages.pop((step, tag))

    def cancel(self, failure: BaseException) -> None:
        """Make every present and later `take` of a message that is not there raise; the first failure stays."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()
