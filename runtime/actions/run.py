"""RUN: an executable is only dispatched; what it returns is still being computed."""

from __future__ import annotations

from collections.abc import Sequence

from shardopt.runtime.actions.context import Action, Context
from shardopt.runtime.devices.xla import DeviceArray
from shardopt.runtime.program.instructions import Run


def run_action(context: Context, position: int, run: Run) -> Action:
    executable = context.executables[run.function]
    buffers = context.buffers
    in_flight = context.in_flight
    most = context.devices.runs_in_flight
    awaited = context.sent.intersection(run.donated)

    def action() -> None:
        if awaited:
            context.sender.wait_for(awaited)
        inputs = [buffers[buffer] for buffer in run.inputs]
        # XLA does not check: a wrong shard or a deleted buffer ends the process.
        if context.checking:
            _check_inputs(context, run, inputs)
        if awaited and context.recorder is not None:
            context.recorder.waited()
        while len(in_flight) >= most:
            context.await_run()
        context.await_stores()
        outputs, token = executable(inputs)
        in_flight.append((position, token))
        for buffer in run.donated:
            buffers[buffer] = None
        for buffer, array in zip(run.outputs, outputs, strict=True):
            buffers[buffer] = array

    return action


def _check_inputs(context: Context, run: Run, inputs: Sequence[DeviceArray | None]) -> None:
    for buffer, array in zip(run.inputs, inputs, strict=True):
        expected = context.program.buffers[buffer]
        fault = "nothing is there" if array is None else context.devices.fault_of(array, expected)
        if fault is not None:
            raise ValueError(f"input %{buffer}: {fault}")
