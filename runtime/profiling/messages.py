"""What the runtime itself takes: a message between two meshes of this process, and the call of a
compiled function."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from time import perf_counter

import numpy as np

from shardopt.forms.exported_program import Argument, MeshValue, ProgramResult, TensorSpec
from shardopt.forms.reshard_steps import default_steps
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.runtime.devices.replicas import Replicas
from shardopt.runtime.driver import open_run
from shardopt.runtime.profiling.chains import calls
from shardopt.runtime.profiling.slopes import LONG, SHORT, Effort, Slope, bytecode_of, slope_of
from shardopt.runtime.program.instructions import Instruction, MeshProgram, Program, Recv, Send
from shardopt.runtime.program.routes import make_route
from shardopt.runtime.run import Run

_AXIS = "x"


def measure_message(bytes: int, devices: int, effort: Effort) -> Slope:
    """One message of `bytes` from each of so many devices of a host mesh to its partner on another.

    A value goes back and forth between two meshes by the instructions, and the transport, of a
    plan."""
    with ExitStack() as stack:
        programs = (_ping_pong(bytes // 4, devices, rounds) for rounds in (SHORT, LONG))
        runs = [
            stack.enter_context(open_run(program, platform="cpu", checked_steps=0))
            for program in programs
        ]
        for run in runs:
            run.load([np.zeros(bytes // 4 * devices, np.float32)])
        short, long = (partial(_step_seconds, run) for run in runs)
        return slope_of(short, long, 2 * (LONG - SHORT), effort)


def _step_seconds(run: Run) -> float:
    begin = perf_counter()
    run.step()
    return perf_counter() - begin


def _ping_pong(count: int, devices: int, rounds: int) -> Program:
    """A value of `count` floats a device goes from mesh a to mesh b and back, so many times."""
    spec = TensorSpec((count * devices,), "float32", Sharding(((_AXIS,),)))
    a, b = (
        Mesh(name, ((_AXIS, devices),), tuple(range(first, first + devices)))
        for name, first in (("a", 0), ("b", devices))
    )
    routes = tuple(
        make_route((source, spec), (target, spec), default_steps((source, spec), (target, spec)))
        for source, target in ((a, b), (b, a))
    )
    on_a: list[Instruction] = []
    on_b: list[Instruction] = []
    for k in range(rounds):
        on_a += [Send(2 * k, (k,), "b", (0,)), Recv(2 * k + 1, (k + 1,), "b", (1,))]
        on_b += [Recv(2 * k, (k,), "a", (0,)), Send(2 * k + 1, (k,), "a", (1,))]
    value = MeshValue("a", spec)
    return Program(
        (Argument("value", value, None),),
        (ProgramResult("value", value),),
        routes,
        (
            MeshProgram(
                mesh=a,
                buffers=(spec,) * (rounds + 1),
                arguments=((0, 0),),
                indices=(),
                instructions=tuple(on_a),
                results=((0, rounds),),
                feedback=(),
                functions=(),
            ),
            MeshProgram(
                mesh=b,
                buffers=(spec,) * rounds,
                arguments=(),
                indices=(),
                instructions=tuple(on_b),
                results=(),
                feedback=(),
                functions=(),
            ),
        ),
    )


def measure_call(buffers: int, replicas: Replicas, effort: Effort) -> Slope:
    """A call of a function with so many arguments and results, half of each, which has nothing to
    do but one sum."""
    count = max(buffers // 2, 1)
    executable, _ = replicas.compile(bytecode_of(calls(buffers)), [((1,), "float32")] * count)

    def sample(calls: int) -> float:
        arrays = [replicas.put(np.zeros(1, np.float32)) for _ in range(count)]
        begin = perf_counter()
        for _ in range(calls):
            arrays, token = executable(arrays)
        token.block_until_ready()
        return perf_counter() - begin

    return slope_of(lambda: sample(SHORT), lambda: sample(LONG), LONG - SHORT, effort)
