"""The warning for a mesh that is slower than predicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from shardopt.tools.run.pace import Pace

PREDICTED = {"m0": 0.1, "m1": 0.2, "m2": 0.1}


def told(
    capsys: pytest.CaptureFixture[str],
    steps: Iterable[Mapping[str, float]],
    predicted: Mapping[str, float] = PREDICTED,
) -> list[str]:
    pace = Pace(predicted)
    for step, measured in enumerate(steps):
        pace.add(step, measured)
    return capsys.readouterr().err.splitlines()


def taking(**factors: float) -> dict[str, float]:
    """All meshes take 7 times what was predicted, and some take more."""
    return {mesh: 7 * factors.get(mesh, 1.0) * seconds for mesh, seconds in PREDICTED.items()}


def test_a_mesh_that_falls_behind_is_told_once_until_it_recovers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = [taking()] * 20 + [taking(m1=2.1)] * 40 + [taking()] * 20 + [taking(m1=1.8)] * 40
    assert told(capsys, steps) == [
        "warning: step 35: mesh 'm1' computes 2.1 times as long as predicted, beside the other "
        "meshes: 2.94 s a step, predicted 0.2 s",
        "warning: step 95: mesh 'm1' computes 1.8 times as long as predicted, beside the other "
        "meshes: 2.52 s a step, predicted 0.2 s",
    ]


def test_what_is_no_reason_for_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """A prediction that is wrong for all, slow steps among others, too few steps, a mesh alone, and
    meshes without a prediction or tasks."""
    assert not told(capsys, [taking()] * 50)
    assert not told(capsys, [taking(m2=1.4)] * 50)
    assert not told(capsys, [taking(m0=1.0 if k % 15 == 0 else 9.0) for k in range(100)])
    assert not told(capsys, [taking(m0=9)] * 15)
    assert not told(capsys, [{"m0": 1.0 + k} for k in range(50)], {"m0": 0.1})
    assert not told(capsys, [taking(m0=9)] * 50, {"m0": 0.0, "m1": 0.2, "m2": 0.1})
    assert not told(capsys, [{"m0": 0.0, "m1": 1.0, "m2": 1.0}] * 50)
    assert not told(capsys, [taking()] * 50, {})
