"""FREE and COPY: when a buffer dies, and what to do when a stage function consumes one that is
still needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardopt.forms.exported_program import TensorSpec
from shardopt.runtime.program.instructions import (
    Copy,
    Free,
    Instruction,
    MeshProgram,
    Run,
    reads,
    writes,
)


def insert_frees(
    program: MeshProgram, emitted: Sequence[Instruction], buffers: list[TensorSpec]
) -> MeshProgram:
    """Walk the list backwards with the set of live buffers; every buffer is freed right after its
    last use.

    A donated input that lives on (kept argument, result, later reader, same buffer twice) is
    replaced by a copy."""
    live = set(program.kept_buffers)
    live.update(buffer for _, buffer in program.results)
    live.update(buffer for buffer, _ in program.feedback)
    listed: list[Instruction] = []

    def emit(instruction: Instruction, donated: Sequence[int] = ()) -> None:
        touched = {*reads(instruction), *writes(instruction)}
        if dead := touched - live - set(donated):
            listed.append(Free(tuple(sorted(dead))))
        listed.append(instruction)
        live.difference_update(writes(instruction))
        live.update(reads(instruction))

    for instruction in reversed(emitted):
        if isinstance(instruction, Run):
            instruction, copies = _protect(instruction, program, live, buffers)
            emit(instruction, instruction.donated)
            # The list grows from its end, so they come to stand in front of the RUN.
            for copy in reversed(copies):
                emit(copy)
        else:
            emit(instruction)
    # State that nobody reads makes room for its successor before anything else.
    if unused := program.state_buffers - live:
        listed.append(Free(tuple(sorted(unused))))
    return replace(program, buffers=tuple(buffers), instructions=tuple(reversed(listed)))


def _protect(
    run: Run, program: MeshProgram, live: set[int], buffers: list[TensorSpec]
) -> tuple[Run, list[Copy]]:
    """Copies for the donated inputs of `run` that are live afterwards or stand among its inputs
    twice."""
    donates = next(
        function.donates for function in program.functions if function.name == run.function
    )
    inputs, copies = list(run.inputs), []
    for position in donates:
        buffer = run.inputs[position]
        if buffer in live or run.inputs.count(buffer) > 1:
            buffers.append(buffers[buffer])
            inputs[position] = len(buffers) - 1
            copies.append(Copy(buffer, inputs[position]))
    donated = tuple(inputs[position] for position in donates)
    return replace(run, inputs=tuple(inputs), donated=donated), copies
