"""The same tests for every backend, with one host a mesh and with several."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.driver import open_run
from shardopt.runtime.errors import MeshError
from shardopt.runtime.faults import Fault
from shardopt.runtime.program.instructions import Program
from shardopt.runtime.reference import compare
from shardopt.runtime.run import Run
from shardopt.support.errors import UserError
from tests.e2e import wide_model
from tests.e2e.exported_model import TEXT, example, expected_step, inputs, load

TOLERANCE = 1e-5
_SLOW, _RAY = [pytest.mark.slow], [pytest.mark.slow, pytest.mark.ray]
# Two devices are one host of a mesh of the example, or two.
SETUPS = [
    pytest.param(("local", None), id="local"),
    pytest.param(("process", None), id="process"),
    pytest.param(("process", 1), id="process-hosts", marks=_SLOW),
    pytest.param(("ray", None), id="ray", marks=_RAY),
]
Setup = tuple[str, int | None]


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Any:
    """Opens a run of a program in a setup."""

    def opened(setup: Setup, program: Program, **options: Any) -> Run:
        backend, devices_per_host = setup
        if backend == "ray":
            request.getfixturevalue("ray_cluster")
        settings = {
            "checked_steps": 100,
            "quick_compile": True,
            "devices_per_host": devices_per_host,
        }
        return open_run(program, backend, **settings, **options)

    return opened


@pytest.mark.parametrize("setup", SETUPS)
def test_a_run(start: Any, setup: Setup) -> None:
    """Numbers over steps, state and kept arguments, lazy outputs, wrong inputs, and at last a
    failing instruction."""
    program = example()
    part = program.meshes[1]
    position = next(
        k
        for k, each in enumerate(part.instructions)
        if getattr(each, "function", "") == "stage1_fwd"
    )
    last_host = 0 if setup[1] is None else 1
    fault = Fault("raise", "m1", last_host, step=3, position=position)
    w0, w1, x, t = inputs()
    other = inputs(seed=1)[2]
    with start(setup, program, faults=[fault]) as run:
        with pytest.raises(UserError, match=r"expected load\(\) with all inputs"):
            run.step()
        with pytest.raises(
            UserError, match=r"input 1 'w1': expected float32\[8, 4\], found float64\[8, 4\]"
        ):
            run.load([w0, w1.astype(np.float64), x, t])
        run.load([w0, w1, x, t])
        with pytest.raises(UserError, match="argument 9 does not exist"):
            run.step({9: np.zeros(3)})
        for batch in (None, other):
            outputs = run.step({} if batch is None else {2: batch})
            w0, w1, loss = expected_step(w0, w1, x if batch is None else batch, t)
            assert all(row.within(TOLERANCE) for row in compare(outputs, [w0, w1, loss]))
        unseen = run.step()
        w0, w1, loss = expected_step(w0, w1, other, t)
        assert unseen[2] == pytest.approx(loss, rel=TOLERANCE)
        np.testing.assert_allclose(run.argument(1), w1, TOLERANCE, TOLERANCE)
        where = re.escape(f"mesh 'm1', host {last_host}, step 3, instruction {position} (")
        with pytest.raises(MeshError, match=rf"{where}.*RUN @stage1_fwd.*injected fault"):
            run.step()
        with pytest.raises(RuntimeError, match="can only be closed"):
            run.step()
        with pytest.raises(RuntimeError, match="can only be closed"):
            unseen[0]


@pytest.mark.slow
def test_bfloat16_and_another_schedule_between_hosts(start: Any) -> None:
    text = (
        TEXT.replace("xf32>", "xbf16>")
        .replace("tensor<f32>", "tensor<bf16>")
        .replace('"1f1b"', '"gpipe"')
    )
    narrow = [array.astype(ml_dtypes.bfloat16) for array in inputs()]
    expected = expected_step(*(array.astype(np.float32) for array in narrow))
    with start(("process", 1), load(text)) as run:
        run.load(narrow)
        outputs = run.step()
        assert outputs[0].dtype == ml_dtypes.bfloat16
        assert float(outputs[2]) == pytest.approx(float(expected[2]), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend", ["local", "process", pytest.param("ray", marks=pytest.mark.ray)]
)
def test_a_mesh_over_two_hosts(start: Any, backend: str, tmp_path: Path) -> None:
    """Values made on its hosts, steps, and a checkpoint that each of them writes its shards of."""
    program = load(wide_model.TEXT)
    w, k = wide_model.inputs()
    exported = jax.export.export(jax.jit(lambda half: half + half), platforms=("cpu",))(w / 2)
    with start((backend, wide_model.DEVICES_PER_HOST), program) as run, make_context() as context:
        names = [host.name for hosts in run._backend.hosts.values() for host in hosts]
        assert names == (["wide", "small"] if backend == "local" else ["wide/0", "wide/1", "small"])
        run.initialize(load_module(exported.mlir_module_serialized, context), [0], [w / 2])
        run.create({1: lambda index: k[index]})
        np.testing.assert_array_equal(run.argument(0, ((2, 5), (1, 7))), w[2:5, 1:7])
        for _ in range(2):
            outputs = run.step()
            expected = wide_model.expected_step(w, k)
            assert all(row.within(TOLERANCE) for row in compare(outputs, expected))
            w = expected[0]
        run.save(tmp_path / "state")
    with start(("local", None), program) as run:
        run.restore(tmp_path / "state")
        run.create({1: lambda index: k[index]})
        rows = compare(run.step(), wide_model.expected_step(w, k))
        assert run.steps_done == 3 and all(row.within(TOLERANCE) for row in rows)
