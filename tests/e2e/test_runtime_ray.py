"""The Ray backend: the same numbers as numpy, and one clear error when a mesh fails or dies."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from exported_model import TEXT, example, expected_step, inputs, load

from shardopt.runtime.driver import Run, open_run
from shardopt.runtime.errors import MeshError
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.reference import compare

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=2)
    yield
    ray.shutdown()


def start(program: Program, transport: str = "auto") -> Run:
    return open_run(program, "ray", transport=transport, checked_steps=100, quick_compile=True)


@pytest.mark.parametrize(("schedule", "transport"), [("1f1b", "sockets"), ("gpipe", "ray")])
def test_steps_match_numpy(cluster: None, schedule: str, transport: str) -> None:
    w0, w1, x, t = inputs()
    with start(example(schedule), transport) as run:
        run.load([w0, w1, x, t])
        for _ in range(2):
            outputs = run.step()
            expected = expected_step(w0, w1, x, t)
            assert all(row.within(1e-5) for row in compare(outputs, expected))
            w0, w1 = expected[:2]


def test_bfloat16_travels(cluster: None) -> None:
    program = load(TEXT.replace("xf32>", "xbf16>").replace("tensor<f32>", "tensor<bf16>"))
    narrow = [array.astype(ml_dtypes.bfloat16) for array in inputs()]
    with start(program, "ray") as run:
        run.load(narrow)
        outputs = run.step()
        assert outputs[0].dtype == ml_dtypes.bfloat16
        assert float(outputs[2]) == pytest.approx(
            float(expected_step(*(a.astype(np.float32) for a in narrow))[2]), rel=0.1
        )


def test_death_of_an_actor_is_one_error_that_names_the_mesh(cluster: None) -> None:
    import ray

    with start(example()) as run:
        run.load(inputs())
        run.step()
        ray.kill(run._backend._actors["m1"])  # type: ignore[attr-defined]
        with pytest.raises(MeshError, match="mesh 'm1', host 0, step 0, end of step: its actor died"):
            run.step()
        with pytest.raises(RuntimeError, match="can only be closed"):
            run.step()


def test_failure_on_a_worker_keeps_its_message(cluster: None) -> None:
    with start(example()) as run, pytest.raises(MeshError, match="mesh 'm0', host 0: result 0 does not exist before"):
        run._has_results = True
        run.fetch(0)
