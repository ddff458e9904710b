"""Meshes of GPUs on several hosts, without a GPU: the platform `cpu` of JAX stands for `gpu` in the
workers, which are started with the settings that GPUs would be, and find each other as they would.

What does not run here is the platform itself: NCCL's collectives and its streams."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from shardopt.runtime.backends import process
from shardopt.runtime.driver import open_run
from shardopt.runtime.reference import compare
from shardopt.support.errors import UserError
from tests.e2e import wide_model
from tests.e2e.exported_model import load

# A worker has as many devices as GPUs that it sees.
_STAND_IN = """
import os, sys
seen = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
print("sees", *seen, flush=True)
os.environ.update(JAX_NUM_CPU_DEVICES=str(len(seen)), JAX_PLATFORMS="cpu")
import jax
from shardopt.runtime.devices import clients, gpus
gpus.default_devices = lambda world, here, platform: clients.default_devices(world, here, "cpu")
gpus.visible_gpus = lambda: tuple(jax.local_devices(backend="cpu"))
from shardopt.runtime.backends.worker_process import main
main(sys.argv[1:])
"""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(files: Sequence[int]) -> list[str]:
        return [sys.executable, "-c", _STAND_IN, *map(str, files)]

    monkeypatch.setattr(process, "_command", command)


@pytest.mark.slow
def test_a_mesh_of_gpus_over_two_hosts(stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second host has the first and the last GPU: places in the mesh are not in the order of
    processes."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9,8,7,6,5,4")
    program = replace(load(wide_model.TEXT), hosts=((1, 2), (0, 3), (4, 5)))
    w, k = wide_model.inputs()
    with open_run(program, "process", platform="gpu", checked_steps=100, quick_compile=True) as run:
        workers = run._backend._processes.values()  # type: ignore[attr-defined]
        sees = [worker._log.read_text().splitlines()[0] for worker in workers]
        assert sees == ["sees 9 6", "sees 8 7", "sees 5 4"]
        run.load([w, k])
        for _ in range(2):
            outputs = run.step()
            expected = wide_model.expected_step(w, k)
            assert all(row.within(1e-5) for row in compare(outputs, expected))
            w = expected[0]


def test_gpus_that_the_driver_does_not_see_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(UserError, match="expected GPU 2 among those of CUDA_VISIBLE_DEVICES=0,1"):
        open_run(load(wide_model.TEXT), "process", platform="gpu")
