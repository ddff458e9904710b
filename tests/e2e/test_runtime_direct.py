"""Whole steps whose messages go from device to device, on host devices and a stand-in for cupy and
NCCL."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from shardopt.forms.exported_program import (
    Argument,
    MeshValue,
    ProgramResult,
    ReshardStep,
    TensorSpec,
)
from shardopt.hardware.cluster_file import load_cluster
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.runtime.actions import direct
from shardopt.runtime.backends.local import LocalBackend
from shardopt.runtime.devices import dlpack
from shardopt.runtime.devices.cuda import Cuda
from shardopt.runtime.errors import MeshError
from shardopt.runtime.options import WorkerOptions
from shardopt.runtime.program.instructions import Instruction, MeshProgram, Program, Recv, Send
from shardopt.runtime.program.routes import make_route
from shardopt.runtime.reference import compare
from shardopt.runtime.run import Run
from shardopt.solve.resharding.transfers import plan_resharding
from tests.e2e.exported_model import TEXT, example, expected_step, inputs, load
from tests.unit.runtime.fake_cupy import Op, World, fake_cupy


class HostCuda(Cuda):
    """Shards of host devices have no streams: the stand-in's stream waits for them on the host."""

    kind = dlpack.CPU

    def view(self, shard: Any, stream: Any) -> Any:
        stream.put(Op(shard.block_until_ready))
        # In jax 0.12 a shard's address is waited for with the interpreter's lock held, which threads
        # of XLA may want; this waits without it.
        shard.block_until_ready()
        return self._words(
            shard.unsafe_buffer_pointer(),
            shard.shape,
            shard.dtype.itemsize,
            (shard, np.asarray(shard)),
        )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    simulated = World(0)
    monkeypatch.setattr(direct, "load_cupy", lambda: fake_cupy(simulated))
    monkeypatch.setattr(direct, "Cuda", HostCuda)
    return simulated


def start(program: Program) -> Run:
    options = WorkerOptions(direct=True, checked_steps=100, quick_compile=True)
    return Run(program, LocalBackend(program, options))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_three_steps_match_numpy(world: World, schedule: str) -> None:
    w0, w1, x, t = inputs()
    with start(example(schedule)) as run:
        run.load([w0, w1, x, t])
        for _ in range(3):
            outputs = run.step()
            expected = expected_step(w0, w1, x, t)
            assert all(row.within(1e-5) for row in compare(outputs, expected))
            w0, w1 = expected[:2]
    assert len(world.groups) == 3 * 2 * 9, (
        "four microbatches, there and back, and what is broadcast, at both ends"
    )


def test_bfloat16_travels(world: World) -> None:
    program = load(TEXT.replace("xf32>", "xbf16>").replace("tensor<f32>", "tensor<bf16>"))
    narrow = [array.astype(ml_dtypes.bfloat16) for array in inputs()]
    with start(program) as run:
        run.load(narrow)
        loss = run.step()[2]
    assert float(loss) == pytest.approx(
        float(expected_step(*(a.astype(np.float32) for a in narrow))[2]), rel=0.1
    )
    assert world.groups


def test_a_failure_aborts_the_communicators(world: World) -> None:
    with start(example()) as run:
        run.load(inputs())
        run.step()
        workers = run._backend._workers  # type: ignore[attr-defined]

        def broken() -> None:
            raise OverflowError("too hot")

        workers["m0"]._actions[0] = broken
        with pytest.raises(MeshError, match="OverflowError: too hot"):
            run.step()
        assert all(each._context.links._failed for each in workers.values())


ROWS = (("x",), ())
TARGETS = {"rows": ROWS, "columns": ((), ("x",)), "all": ((), ())}


@pytest.mark.parametrize(
    ("strategy", "target"),
    [
        pytest.param(strategy, target, marks=() if k == n else pytest.mark.slow)
        for k, strategy in enumerate(("send_recv", "local_allgather", "broadcast"))
        for n, target in enumerate(TARGETS)
    ],
)
def test_every_plan_of_a_transfer_moves_the_value(world: World, strategy: str, target: str) -> None:
    """Two devices to three, so that slices are cut, not in one run of memory, and completed on the
    devices."""
    shape = (12, 6)
    a, b = Mesh("a", (("x", 2),), (0, 1)), Mesh("b", (("x", 3),), (3, 4, 5))
    source, goal = (
        TensorSpec(shape, "bfloat16", Sharding(dims)) for dims in (ROWS, TARGETS[target])
    )
    ends = (a, source.sharding), (b, goal.sharding)
    rows = (
        plan_resharding(shape, 2, *ends, load_cluster("cpu-test:2x3"), strategy).to_array().tolist()
    )
    steps = tuple(ReshardStep(*row[:3], tuple(zip(row[3:5], row[5:], strict=True))) for row in rows)
    route = make_route((a, source), (b, goal), steps)
    on_b: list[Instruction] = [Recv(0, (0,), "a", (0,))]
    if route.completion is not None:
        on_b.append(route.completion(1, 0, 0))
    parts = (
        MeshProgram(
            mesh=a,
            buffers=(source,),
            arguments=((0, 0),),
            indices=(),
            instructions=(Send(0, (0,), "b", (0,)),),
            results=(),
            feedback=(),
            functions=(),
        ),
        MeshProgram(
            mesh=b,
            buffers=(goal,),
            arguments=(),
            indices=(),
            instructions=tuple(on_b),
            results=((0, 0),),
            feedback=(),
            functions=(),
        ),
    )
    argument = Argument("x", MeshValue("a", source), None)
    result = ProgramResult("y", MeshValue("b", goal))
    program = Program((argument,), (result,), (route,), parts)
    value = np.arange(72).reshape(shape).astype(ml_dtypes.bfloat16)
    with start(program) as run:
        for _ in range(2):
            run.load([value])
            np.testing.assert_array_equal(run.step()[0], value)
    assert len(world.groups) == 2 * 2
