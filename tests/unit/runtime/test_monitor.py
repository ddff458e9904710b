"""What is concluded from where the workers say they are, on made-up times."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from shardopt.runtime.errors import Kind, MeshError
from shardopt.runtime.health import watch as watch_module
from shardopt.runtime.health.monitor import Limits, Monitor, Status
from shardopt.runtime.health.watch import Watch
from shardopt.runtime.program.hosts import Host
from shardopt.runtime.program.instructions import Recv, Send
from tests.e2e.exported_model import example

LIMITS = Limits(silence_seconds=3, message_seconds=10, progress_seconds=60)


def monitor() -> tuple[Monitor, int, int]:
    """With the places of a SEND on m0, which has two hosts, and of its RECV on m1."""
    program = example()
    first, second = (part.instructions for part in program.meshes)
    send = next(number for number, each in enumerate(first) if isinstance(each, Send))
    tag = next(each.tag for each in first if isinstance(each, Send))
    recv = next(
        number for number, each in enumerate(second) if isinstance(each, Recv) and each.tag == tag
    )
    watching = Monitor(program, {"m0": ("m0/0", "m0/1"), "m1": ("m1",)}, LIMITS)
    watching.begin(0.0)
    return watching, send, recv


def test_a_message_that_all_hosts_sent_and_nobody_got_was_lost() -> None:
    watching, send, recv = monitor()
    sent, waiting = Status(4, send + 1, False, 0), Status(4, recv, True, 0)
    everybody = ("m0/0", "m0/1", "m1")

    def at(now: float, other: Status) -> MeshError | None:
        return watching.observe({"m0/0": sent, "m0/1": other, "m1": waiting}, everybody, now)

    assert at(1, Status(4, send, False, 0)) is None
    assert at(12, Status(4, send, False, 0)) is None  # one host has not come to its SEND
    assert at(23, Status(4, send + 1, False, 1)) is None  # it has, and is at it
    error = at(24, sent)
    assert error is not None and error.kind is Kind.LOST
    assert str(error).startswith(f"mesh 'm1', host 0, step 4, instruction {recv} (")
    assert (
        "message 0 of mesh 'm0' was sent and has not come for 10 s (limit message_seconds=10)"
        in str(error)
    )


def test_a_message_under_way_gets_its_time() -> None:
    watching, send, recv = monitor()
    for now in range(40):
        statuses = {"m0/0": Status(4, send + 1, False, 0), "m0/1": Status(4, send + 1, False, 0)}
        assert (
            watching.observe(statuses | {"m1": Status(4, recv, now % 9 > 0, 0)}, ("m1",), now)
            is None
        )


def test_who_holds_up_the_others_is_named() -> None:
    watching, send, recv = monitor()
    statuses = {
        "m0/0": Status(0, 0, True, 0),
        "m0/1": Status(0, send, False, 0),
        "m1": Status(0, recv, True, 0),
    }
    assert watching.observe(statuses, tuple(statuses), 1.0) is None
    assert watching.observe(statuses, tuple(statuses), 60.5) is None
    error = watching.observe(statuses, tuple(statuses), 61.5)
    assert error is not None and (error.worker, error.kind) == ("m0/1", Kind.STUCK)
    assert f"instruction {send} (SEND" in str(error) and "limit progress_seconds=60" in str(error)
    assert (
        watching.observe(statuses | {"m1": Status(0, recv + 1, False, 0)}, tuple(statuses), 62)
        is None
    )
    watching.begin(70)
    assert watching.observe(statuses, tuple(statuses), 71) is None
    assert watching.observe({}, (), 900) is None  # nobody is asked for anything


@pytest.mark.parametrize(
    ("known", "where"), [((2, 3), ", step 2, instruction 3 ("), (None, ": no sign")]
)
def test_silence_is_an_error_outside_of_steps_too(
    monkeypatch: pytest.MonkeyPatch, known: tuple[int, int] | None, where: str
) -> None:
    now = 100.0
    monkeypatch.setattr(watch_module, "monotonic", lambda: now)
    questions: list[tuple[str, Future[Any]]] = []

    def ask(worker: str) -> Future[Any]:
        questions.append((worker, Future()))
        return questions[-1][1]

    hosts = {mesh: (Host(mesh, 0, 1, (0, 1)),) for mesh in ("m0", "m1")}
    watch = Watch(example(), hosts, LIMITS, ask, lambda worker: known)
    watch.begin("load" if known is None else "step", {})
    for now in (100.0, 102.0, 104.0):
        assert watch.check(["m0", "m1"]) is None
        for worker, question in questions:
            if not question.done() and (worker == "m0" or now < 103):
                question.set_result(
                    {"step": 0, "position": int(now), "waiting": False, "pending": 0}
                )
    now = 106.0
    error = watch.check(["m0", "m1"])
    assert error is None  # what m1 said at 102 was heard at 104
    now = 108.0
    assert watch.check(["m0"]) is None
    error = watch.check(["m0", "m1"])
    assert (
        error is not None
        and str(error).startswith(f"mesh 'm1', host 0{where}")
        and error.kind is Kind.STUCK
    )
    assert "no sign of life for 4.0 s (limit silence_seconds=3): its process is stopped" in str(
        error
    )
    assert len(questions) < 8  # nobody is asked again before there is an answer
