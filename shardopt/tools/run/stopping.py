"""A run of `shardopt run` that ends before its last step: Ctrl-C, SIGTERM, and a limit of time.

The first two let the step end and the state be saved; a second Ctrl-C ends the run at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType

from shardopt.tools.common import EXIT_STOPPED

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHELL_BASE = 128  # exit code of a command that a signal ended, as shells have it


class Stopping:
    """Why a run is to stop after its step, once there is a reason."""

    def __init__(self, seconds: float | None) -> None:
        self._limit = seconds
        self._deadline = None if seconds is None else monotonic() + seconds
        self._signal: signal.Signals | None = None

    def asked(self) -> bool:
        late = self._deadline is not None and monotonic() >= self._deadline
        return late or self._signal is not None

    @property
    def exit_code(self) -> int:
        return EXIT_STOPPED if self._signal is None else _SHELL_BASE + self._signal

    def tell(self, done: int, steps: int, saved: bool) -> None:
        why = f"{self._limit:g} s are over" if self._signal is None else self._signal.name
        state = "its state is saved" if saved else "its state is not saved (--checkpoint-dir)"
        print(f"note: stopped after {done} of {steps} steps ({why}); {state}", file=sys.stderr)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Until the end of the block signals are requests, and the default again after one."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may listen
            return
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = signal.Signals(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(
            f"note: {self._signal.name}: the run stops after this step; Ctrl-C ends it at once",
            file=sys.stderr,
        )
