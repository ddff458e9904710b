"""The threads that send: each target in order, none behind another; what was read may then be
written to."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

from shardopt.runtime.actions.sender import Sender
from shardopt.runtime.errors import Cancelled


def test_a_slow_receiver_holds_up_nobody_else() -> None:
    sender, gate, done = Sender("a"), threading.Event(), []
    sender.submit("slow", [1], gate.wait)
    sender.submit("slow", [2], lambda: done.append("slow"))
    sender.submit("fast", [3], lambda: done.append("fast"))
    sender.wait_for(frozenset([3]))
    assert done == ["fast"]
    gate.set()
    sender.wait_for(frozenset([1, 2]))
    assert done == ["fast", "slow"]
    sender.close()


def test_what_was_sent_is_let_go() -> None:
    sender, array = Sender("a"), np.zeros(3)
    gone = weakref.ref(array)
    sender.submit("b", [0], lambda kept=array: None)  # type: ignore[misc]
    sender.drain()
    del array
    assert gone() is None
    sender.close()


def test_an_error_reaches_the_one_who_waits() -> None:
    sender = Sender("a")

    def fail() -> None:
        raise ConnectionError("cut")

    sender.submit("b", [0], fail)
    sender.flush()
    with pytest.raises(ConnectionError, match="cut"):
        sender.wait_for(frozenset([0]))
    sender.submit("b", [1], lambda: None)
    with pytest.raises(ConnectionError, match="cut"):
        sender.drain()
    sender.drain()
    sender.close()


def test_what_has_not_begun_is_dropped_when_the_worker_closes() -> None:
    sender, started, gate, done = Sender("a"), threading.Event(), threading.Event(), []

    def first() -> None:
        started.set()
        gate.wait()

    sender.submit("b", [0], first)
    sender.submit("b", [1], lambda: done.append(1))
    started.wait()
    closing = threading.Thread(target=sender.close)
    closing.start()
    while not sender._lanes["b"]._closed:
        pass
    gate.set()
    closing.join(10)
    with pytest.raises(Cancelled):
        sender.drain()
    assert not done
