"""What lies on the hosts is moved while nothing else runs."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardopt.forms.exported_program import TensorSpec
from shardopt.mesh.mesh import Sharding
from shardopt.runtime.actions.context import Context
from shardopt.runtime.actions.memory import move_action
from shardopt.runtime.actions.run import run_action
from shardopt.runtime.program.instructions import Move, Run

_DEVICE = TensorSpec((8,), "float32", Sharding.replicated(1))
_HOST = TensorSpec((8,), "float32", Sharding.replicated(1), "host")


class _Waits:
    def __init__(self, events: list[str], event: str) -> None:
        self._events, self._event = events, event

    def block_until_ready(self) -> None:
        self._events.append(self._event)


class _Context(SimpleNamespace):
    await_run, await_stores = Context.await_run, Context.await_stores


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def context(events: list[str]) -> Context:
    def move(array: object, spec: TensorSpec) -> _Waits:
        events.append(f"to {spec.memory}")
        return _Waits(events, f"at {spec.memory}")

    def execute(inputs: list[object]) -> tuple[list[object], _Waits]:
        events.append("run")
        return [_Waits(events, "made")], _Waits(events, "ran")

    return cast(
        "Context",
        _Context(
            program=SimpleNamespace(buffers=(_DEVICE, _HOST, _DEVICE, _DEVICE)),
            buffers=[_Waits(events, "given"), None, None, None],
            devices=SimpleNamespace(move=move, runs_in_flight=32),
            executables={"f": execute},
            in_flight=deque(),
            storing=[],
            sent=frozenset(),
            checking=False,
            recorder=None,
        ),
    )


def test_a_run_begins_when_the_memory_of_what_was_stored_is_free(
    context: Any, events: list[str]
) -> None:
    store = move_action(context, 1, Move(0, 1))
    run = run_action(context, 2, Run("f", (0,), (3,), (), ""))
    store()
    store()
    run()
    assert events == ["to host", "to host", "at host", "at host", "run"]
    run()
    assert events[5:] == ["run"], "waited for once"


def test_fetching_begins_when_all_before_it_is_done(context: Any, events: list[str]) -> None:
    run = run_action(context, 0, Run("f", (0,), (3,), (), ""))
    run()
    run()
    move_action(context, 1, Move(0, 1))()
    move_action(context, 2, Move(1, 2))()
    assert events == ["run", "run", "to host", "ran", "ran", "at host", "to device"]
