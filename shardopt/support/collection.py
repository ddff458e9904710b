"""Garbage collection while passes run: seldom, as there is little garbage and much to look
through.

Planning builds millions of small objects that stay until the plan is there, in no cycles. Python
looks through all of them whenever their number has grown by a quarter, an eighth of the time for a
large model."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# By how many objects young ones grow between collections, and how many of these between those of
# older ones. Every object that stays is looked through at least once, a fiftieth of the time for 12
# million of them; 3,000 objects could be freed where a GPT of 1.3B parameters was planned.
_YOUNG, _OLDER, _OLDEST = 20_000_000, 20, 1_000


@contextmanager
def rare_collection() -> Iterator[None]:
    """Collect seldom inside, unless whoever calls does so already; the thresholds before are those
    afterwards."""
    before = gc.get_threshold()
    if not gc.isenabled() or before[0] == 0 or before[0] >= _YOUNG:
        yield
        return
    gc.set_threshold(_YOUNG, _OLDER, _OLDEST)
    try:
        yield
    finally:
        gc.set_threshold(*before)
