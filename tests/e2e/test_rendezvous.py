"""Plans run where every send waits until its receiver has come to the RECV."""

from __future__ import annotations

import numpy as np
import pytest

from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import PlanOptions
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.backends import local
from shardopt.runtime.driver import open_run, prepare
from shardopt.runtime.program import build
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.program.sends import deadlock
from shardopt.runtime.reference import Reference, compare
from shardopt.runtime.transports.mailbox import Mailbox, Payload
from tests.e2e.models import mlp

STEPS = 3
PATIENCE = 60.0  # seconds until a blocked run is a failed one


class Rendezvous(Mailbox):
    """A mailbox that takes a message only while somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._wanted: set[tuple[int, int]] = set()

    def put(self, step: int, tag: int, payload: Payload) -> None:
        with self._changed:
            met = self._changed.wait_for(
                lambda: (step, tag) in self._wanted or self._failure is not None, PATIENCE
            )
            assert met, f"nobody has come to message {tag}"
        super().put(step, tag, payload)

    def take(self, step: int, tag: int) -> Payload:
        with self._changed:
            self._wanted.add((step, tag))
            self._changed.notify_all()
        return super().take(step, tag)


@pytest.fixture(
    scope="module", params=["dualpipe-v", pytest.param("v-half", marks=pytest.mark.slow)]
)
def planned(request: pytest.FixtureRequest) -> tuple[bytes, bytes, list[np.ndarray]]:
    """Six layers on three meshes, where these schedules take values in another order than they are
    made."""
    artifact, inputs = mlp(8, 16, 6)
    options = PlanOptions(
        "cpu-test:1x3",
        microbatches=8,
        layers=6,
        stages=6,
        submesh="1x1",
        schedule=request.param,
        recompute="none",
    )
    return artifact, make_plan(artifact, options).module, inputs


def program_of(module: bytes) -> Program:
    with make_context() as context:
        return prepare(load_module(module, context))


def test_sends_in_order_of_receipt_do_not_block(
    planned: tuple[bytes, bytes, list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact, module, inputs = planned
    monkeypatch.setattr(local, "Mailbox", Rendezvous)
    with open_run(program_of(module), "local", quick_compile=True) as run:
        run.load(inputs)
        for _ in range(STEPS):
            outputs = list(run.step())
    expected: list[np.ndarray] = []
    with make_context() as context:
        reference = Reference(load_module(artifact, context))
        for _ in range(STEPS):  # results replace the first inputs, which are the state
            expected = reference([*expected[:-1], *inputs[max(len(expected) - 1, 0) :]])
    assert [row for row in compare(outputs, expected) if not row.within(1e-4)] == []


def test_as_made_they_would_block(
    planned: tuple[bytes, bytes, list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, module, _ = planned
    assert deadlock(program_of(module), rendezvous=True) == ""
    monkeypatch.setattr(
        build, "order_sends", lambda lists: [list(instructions) for instructions in lists]
    )
    with pytest.raises(
        Exception, match=r"deadlock where sends wait for their receivers: mesh m\d, instruction"
    ):
        program_of(module)
