"""What may look at a step while it runs, instruction by instruction."""

from __future__ import annotations

from typing import Protocol

from shardopt.runtime.actions.context import Context


class Observer(Protocol):
    """Called on the worker's own thread. `position` counts instructions from 0; the end of the step
    comes last, as two more: waiting for all that is under way, and moving results and state."""

    def begin_step(self, step: int) -> None: ...

    def begin(self, position: int) -> None: ...

    def end(self, position: int) -> None:
        """Not called for an instruction that fails."""


class LiveBytesObserver:
    """Bytes that a device of the mesh holds after each instruction of the newest step, and at its
    end."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.bytes: list[int] = []

    def begin_step(self, step: int) -> None:
        self.bytes.clear()

    def begin(self, position: int) -> None:
        """Only ends count."""

    def end(self, position: int) -> None:
        self._context.sender.flush()  # behind all that is being sent, whose arrays are gone then
        self.bytes.append(self._context.devices.live_bytes())
