"""Measuring: what is timed is what is meant, and what makes no sense is left out."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardopt.cost.collectives import COLLECTIVES
from shardopt.hardware.profile import COMPUTE_KINDS, DISPATCH, SEND, Measurement
from shardopt.hardware.profile_file import load_profile
from shardopt.runtime.devices.clients import unshared_devices
from shardopt.runtime.devices.replicas import Replicas, accelerators
from shardopt.runtime.profiling.chains import COMPUTE, Chain, elementwise, matmul
from shardopt.runtime.profiling.collective_chains import collective
from shardopt.runtime.profiling.measure import MeasurementRequest, measure_profile
from shardopt.runtime.profiling.messages import measure_message
from shardopt.runtime.profiling.slopes import (
    Effort,
    MergedError,
    bytecode_of,
    measure_chain,
    slope_of,
)
from shardopt.tools.shardopt import main

LEAST = Effort(fewest=1, most=1, seconds=0.0)
DEVICES = unshared_devices(4).local
ALL = Replicas(DEVICES)


def run(
    chain: Chain, steps: int, *values: np.ndarray, replicas: Replicas = ALL
) -> list[np.ndarray]:
    """What each device ends with; the first argument differs by device, the others are the same
    everywhere."""
    executable, _ = replicas.compile(
        bytecode_of(chain.text(steps)), [(chain.arguments[0], "float32")]
    )
    outputs, token = executable([replicas.put(value) for value in values])
    token.block_until_ready()
    return [np.asarray(shard) for shard in outputs[0]._arrays]


def test_chains_of_compute_do_what_they_say() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 16, 16)).astype(np.float32)
    np.testing.assert_allclose(run(matmul(16, "f32"), 2, a, b)[3], a @ b @ b, rtol=1e-4, atol=1e-4)
    x, y = a.reshape(-1), b.reshape(-1)
    np.testing.assert_allclose(run(elementwise(256, "f32"), 3, x, y)[0], x + 3 * y, rtol=1e-5)
    rows = rng.standard_normal((4, 256)).astype(np.float32)
    table = np.zeros((16, 256), np.float32)
    np.testing.assert_allclose(run(COMPUTE["scatter"](4, "f32"), 2, table, rows)[0][:4], 2 * rows)


@pytest.mark.parametrize("group", [2, 4])
def test_chains_of_collectives_do_what_they_say(group: int) -> None:
    x = np.arange(16, dtype=np.float32)
    reduced = run(collective("all_reduce", 64, group, 4, scatters=False), 2, x)
    np.testing.assert_array_equal(reduced[3], x * group**2)
    scattered = run(collective("reduce_scatter", 64, group, 4, scatters=False), 1, x)
    # Each device writes the first element of its own part of the sum over its first element.
    part = 16 // group
    assert [row[0] for row in scattered] == [group * part * (device % group) for device in range(4)]
    gathered = collective("all_gather", 64, group, 4, scatters=False)
    assert gathered.arguments == ((16 // group,),) and gathered.size == 64
    np.testing.assert_array_equal(run(gathered, 1, x[: 16 // group])[0], x[: 16 // group])
    swapped = collective("all_to_all", 64 * group, group, 4, scatters=False)
    assert swapped.size == 64 * group and swapped.arguments == ((16,),)
    assert [row[0] for row in run(swapped, 1, x)] == [
        16 // group * (device % group) for device in range(4)
    ]


@pytest.mark.parametrize("kind", [*COMPUTE_KINDS, *COLLECTIVES])
def test_every_chain_survives_the_compiler(kind: str) -> None:
    chain = (
        COMPUTE[kind](16, "f32")
        if kind in COMPUTE
        else collective(kind, 1024, 2, 4, scatters=False)
    )
    assert measure_chain(chain, ALL, LEAST).samples == 1


def test_merged_work_is_refused() -> None:
    chain = elementwise(64, "f32")

    def no_barrier(step: int, x: str) -> tuple[str, str]:
        return f"%y{step} = stablehlo.add {x}, %x1 : tensor<64xf32>", f"%y{step}"

    def same(step: int, x: str) -> tuple[str, str]:
        return (
            f"%y{step} = stablehlo.dot_general %x1, %x1, contracting_dims = [1] x [0] : {types}",
            f"%y{step}",
        )

    types = "(tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>"
    with pytest.raises(
        MergedError, match=r"expected 4 more add and as many more kernels .*, found 4 and 0"
    ):
        measure_chain(replace(chain, link=no_barrier), ALL, LEAST)
    with pytest.raises(MergedError, match=r"expected 4 more dot .*, found 0 and 0"):
        measure_chain(replace(matmul(8, "f32"), link=same), ALL, LEAST)


def test_a_slope_is_that_of_the_smallest_samples() -> None:
    short, long = iter([9.0, 3.0, 1.0, 2.0]), iter([9.0, 12.0, 5.0, 7.0])
    slope = slope_of(
        lambda: next(short), lambda: next(long), 4, Effort(fewest=3, most=3, seconds=0.0)
    )
    # The first of each warms up.
    assert (slope.seconds, round(slope.spread, 6), slope.samples) == (1.0, 0.4, 3)


def test_messages_go_through_the_transport_of_plans() -> None:
    assert measure_message(1024, 2, LEAST).samples == 1


def test_a_profile_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    remarks: list[str] = []
    seconds = iter([-1.0, *range(1, 1000)])

    def measured(chain: Chain, replicas: Replicas, effort: Effort) -> object:
        slope = measure_chain(chain, replicas, effort)
        return replace(slope, seconds=float(next(seconds)))

    monkeypatch.setattr("shardopt.runtime.profiling.measure.measure_chain", measured)
    profile = measure_profile(
        DEVICES[:2],
        MeasurementRequest("host", effort=LEAST, longest_seconds=0.0),
        {},
        remark=remarks.append,
    )
    assert {each.kind for each in profile.measurements} == {
        *COMPUTE_KINDS,
        *COLLECTIVES,
        SEND,
        DISPATCH,
    }
    assert (
        remarks[0]
        == "matmul f32, size 16: left out: the longer program took less time than the shorter one"
    )
    assert profile.measurements[0] == Measurement("matmul", (2.0 * 32**3,), (1.0,), "f32")
    assert len(profile.speeds) == 2 and profile.speeds[0] >= profile.speeds[1] == 1.0


def test_speeds_are_those_of_meshes_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of clients that have so many devices and the threads of a worker, by which fewer devices than
    all are measured; not of some devices of one client, which has a thread for each core."""
    opened: list[tuple[int, str | None]] = []

    def like_a_worker(number: int) -> object:
        opened.append((number, os.environ.get("PJRT_NPROC")))
        return unshared_devices(number)

    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr("shardopt.runtime.profiling.measure.unshared_devices", like_a_worker)
    slope = replace(measure_chain(matmul(16, "f32"), Replicas(DEVICES[:1]), LEAST), seconds=1.0)
    monkeypatch.setattr("shardopt.runtime.profiling.measure.measure_chain", lambda *_: slope)
    request = MeasurementRequest("host", effort=LEAST, kinds=())
    assert measure_profile(DEVICES[:4], request, {}).speeds == (1.0,) * 4
    assert opened == [(1, "2"), (2, "4"), (4, None)]


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = MeasurementRequest("d", effort=LEAST, longest_seconds=0.0)
    monkeypatch.setattr(
        MeasurementRequest,
        "quick",
        staticmethod(lambda device, dtypes: replace(quick, device=device)),
    )
    files = [tmp_path / "p.json", tmp_path / "p.svg"]
    arguments = ["--quick", "--platform", "cpu", "--devices", "2", "--date", "2026-01-31"]
    assert main(["profile", *arguments, "-o", str(files[0]), "--svg", str(files[1])]) == 0
    profile = load_profile(str(files[0]))
    assert (profile.device, profile.devices, profile.origin["date"]) == ("cpu", 2, "2026-01-31")
    assert files[1].read_text().count("<polyline") >= len(profile.measurements)
    assert re.search(r"all_reduce +│ +│ 2 ", capsys.readouterr().out)


def test_what_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--platform", "accelerator", "--devices", "99"]) == 1
    assert "expected 99 accelerators, found" in capsys.readouterr().err
    assert main(["profile", "-o", str(tmp_path / "no" / "p.json")]) == 1
    assert "its folder does not exist" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="1"):
        main(["profile", "--dtypes", "f32,f31"])


def test_a_profile_of_accelerators() -> None:
    devices = accelerators()
    if not devices:
        pytest.skip("no accelerator: jax.local_devices() are those of the host")
    profile = measure_profile(
        devices, MeasurementRequest("a", effort=LEAST, longest_seconds=0.0), {}
    )
    assert {"matmul", "elementwise", "dispatch"} <= {each.kind for each in profile.measurements}
