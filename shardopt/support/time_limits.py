"""A limit on how long this process may take for something in which no Python code runs."""

from __future__ import annotations

import signal

# Whoever shares a machine with many waits for them, too: time of the processor counts. What waits
# and does nothing has a limit as well.
_WAITING = 20

# By one of these the system ends a process that is beyond its limit.
ENDS = frozenset(getattr(signal, name) for name in ("SIGPROF", "SIGALRM") if hasattr(signal, name))


def limit_time(seconds: float) -> None:
    """From now on the threads of this process may work so many seconds, together, and 20 times as
    long may pass; 0 ends the limit. For POSIX."""
    for number in ENDS:
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, _WAITING * seconds)
