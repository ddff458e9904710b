"""What is concluded from where the workers say they are, on made-up times."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from shardopt.runtime.errors import FailureKind, MeshError
from shardopt.runtime.health.limits import Limits
from shardopt.runtime.health.monitor import Monitor, Status
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


def test_a_part_that_was_sent_and_is_not_on_its_way_was_lost() -> None:
    watching, send, recv = monitor()
    everybody, now = ("m0/0", "m0/1", "m1"), 0.0
    past = Status(4, send + 1, False)

    def seconds(count: int, *statuses: Status) -> MeshError | None:
        nonlocal now
        errors = []
        for _ in range(2 * count):
            now += 0.5
            errors.append(
                watching.observe(dict(zip(everybody, statuses, strict=True)), everybody, now)
            )
        return next(filter(None, errors), None)

    # The other host has not come to its SEND; it has, and is at it; it is not heard of.
    waiting = Status(4, recv, True, missing=("m0/1",))
    assert seconds(20, past, Status(4, send, False), waiting) is None
    assert seconds(20, past, Status(4, send + 1, False, sending=("m1",)), waiting) is None
    assert seconds(10, past, past, waiting) is None
    # Something of it is on its way in after all; then all begins anew.
    assert seconds(1, past, past, Status(4, recv, True, missing=())) is None
    assert seconds(10, past, past, waiting) is None
    error = seconds(1, past, past, waiting)
    assert error is not None and error.kind is FailureKind.LOST
    assert str(error).startswith(f"mesh 'm1', host 0, step 4, instruction {recv} (")
    assert "message 0 of mesh 'm0' was sent and has not come for 10 s" in str(error)
    assert "limit message_seconds=10" in str(error)


@pytest.mark.parametrize("paused", ["m0/0", "m1"])
def test_time_in_which_an_end_says_nothing_does_not_count(paused: str) -> None:
    watching, send, recv = monitor()
    statuses = {
        "m0/0": Status(4, send + 1, False),
        "m1": Status(4, recv, True, missing=("m0/0",)),
    }
    answered = {worker: at for worker, at in statuses.items() if worker != paused}
    assert watching.observe(statuses, tuple(statuses), 1.0) is None
    for now in range(2, 60):
        assert watching.observe(answered, tuple(statuses), now) is None
    # It goes on, and tells what was true before; then it has its time.
    for now in range(60, 79):
        assert watching.observe(statuses, tuple(statuses), now) is None
    error = watching.observe(statuses, tuple(statuses), 100)
    assert error is not None and error.kind is FailureKind.LOST


def test_bytes_that_move_are_progress() -> None:
    watching, _, recv = monitor()
    for now in range(200):
        waiting = Status(4, recv, True, received=now // 50)
        assert watching.observe({"m1": waiting}, ("m1",), now) is None


def test_who_holds_up_the_others_is_named() -> None:
    watching, send, recv = monitor()
    statuses = {
        "m0/0": Status(0, 0, True),
        "m0/1": Status(0, send, False),
        "m1": Status(0, recv, True),
    }

    def after(seconds: int) -> MeshError | None:
        """Of two looks a second: the time of a driver that does not look does not count."""
        nonlocal now
        for _ in range(2 * seconds):
            now += 0.5
            error = watching.observe(statuses, tuple(statuses), now)
        return error

    now = 0.0
    assert after(60) is None
    now += 1000
    error = after(1)
    assert error is not None and (error.worker, error.kind) == ("m0/1", FailureKind.STUCK)
    assert f"instruction {send} (SEND" in str(error) and "limit progress_seconds=60" in str(error)
    statuses["m1"] = Status(0, recv + 1, False)
    assert after(60) is None
    statuses |= {"m0/1": Status(0, 0, True, sending=("m1",)), "m1": Status(0, recv, True)}
    error = after(61)
    assert error is not None and error.worker == "m0/1"
    watching.begin(now)
    assert after(2) is None
    assert watching.observe({}, (), 9000) is None  # nobody is asked for anything


@pytest.mark.parametrize(
    ("known", "where"), [((2, 3), ", step 2, instruction 3 ("), (None, ": no sign")]
)
def test_silence_is_an_error_outside_of_steps_too(
    known: tuple[int, int] | None, where: str
) -> None:
    now = 100.0
    questions: list[tuple[str, Future[Any]]] = []

    def ask(worker: str) -> Future[Any]:
        questions.append((worker, Future()))
        return questions[-1][1]

    hosts = {mesh: (Host(mesh, 0, 1, (0, 1)),) for mesh in ("m0", "m1")}
    watch = Watch(example(), hosts, LIMITS, ask, lambda worker: known, lambda: now)
    watch.begin("load" if known is None else "step", {})
    error = None
    while error is None and now < 120:
        error = watch.check(["m0", "m1"])
        for worker, question in questions:
            if not question.done() and (worker == "m0" or now < 103):
                question.set_result(worker_status(0, int(now)))
        now += 0.5
    assert (
        error is not None
        and str(error).startswith(f"mesh 'm1', host 0{where}")
        and error.kind is FailureKind.STUCK
    )
    assert "no sign of life for 3.5 s (limit silence_seconds=3): its process is stopped" in str(
        error
    )
    assert watch.check(["m0"]) is None
    assert sum(worker == "m1" for worker, _ in questions) == 7  # each but the first after an answer


def worker_status(step: int, position: int, **others: Any) -> dict[str, Any]:
    return {
        "program": "",
        "busy": True,
        "step": step,
        "position": position,
        "waiting": False,
        "missing": [],
        "sending": [],
        "received": 0,
    } | others


def test_answers_to_questions_of_an_earlier_call_are_signs_of_life_and_no_more() -> None:
    now = 0.0
    program, (_, send, recv) = example(), monitor()
    pending: dict[str, Future[Any]] = {}

    def ask(worker: str) -> Future[Any]:
        pending[worker] = Future()
        return pending[worker]

    def check(answers: dict[str, dict[str, Any]]) -> MeshError | None:
        nonlocal now
        for worker, answer in answers.items():
            pending[worker].set_result(answer)
        now += 0.5
        return watch.check(["m0", "m1"])

    hosts = {mesh: (Host(mesh, 0, 1, (0, 1)),) for mesh in ("m0", "m1")}
    watch = Watch(program, hosts, LIMITS, ask, lambda worker: None, lambda: now)
    watch.begin("step", {})
    assert check({}) is None
    old = worker_status(0, recv, waiting=True, missing=["m0"])
    at_end = worker_status(1, len(program.meshes[0].instructions) + 1, busy=False)
    watch.begin("step", {})
    assert check({"m0": worker_status(0, send + 1), "m1": old}) is None
    assert watch.place("m1") == ""
    # m0 is slow to begin: that it has done step 0 does not mean that it has sent in step 1.
    waiting = worker_status(1, recv, waiting=True, missing=["m0"])
    assert not any(check({"m0": at_end, "m1": waiting}) for _ in range(60))
    assert watch.place("m1").startswith(f"step 1, instruction {recv} (")
