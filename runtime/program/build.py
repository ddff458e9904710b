"""From an exported program to instructions.

1. `@main` is walked in program order: calls become RUN on their mesh; a transfer becomes SEND where
   it stands and RECV before the first use of its result. Program order is one order in which
   everything can run, so nothing deadlocks.
2. The microbatch loop is unrolled by its schedule, mesh by mesh (`loop.py`).
3. Transfers at the same place are combined to one message (`combine.py`).
4. SENDs are put in order where receivers would take them in another (`sends.py`).
5. FREE is added, and COPY where a donated buffer is still needed (`liveness.py`).

An argument on the host is moved to the devices before each call that reads it, and what replaces it
to the host behind the call that makes it, so that no more of them are on the devices than one call
needs; so is what waits on the host for a backward.

Older versions of arguments are no arguments of the program, and their successors no results.

Tags and buffer ids are numbered in the order of emission, so both ends of a transfer agree and the
program is the same in every run."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from shardopt.forms.exported_program import (
    Call,
    ExportedProgram,
    Loop,
    TensorSpec,
    Transfer,
)
from shardopt.runtime.program.combine import combine_transfers
from shardopt.runtime.program.emitter import Emitter, MeshEmitter
from shardopt.runtime.program.instructions import Copy, MeshProgram, Program
from shardopt.runtime.program.labels import label_of
from shardopt.runtime.program.liveness import insert_frees
from shardopt.runtime.program.loop import lower_loop
from shardopt.runtime.program.sends import order_sends


def build_program(exported: ExportedProgram) -> Program:
    """Raises UserError when the schedule does not fit the module's stages."""
    emitter = Emitter(exported)
    values = exported.main.values
    arguments: dict[str, list[tuple[int, int]]] = {mesh.name: [] for mesh in exported.meshes}
    resting: dict[int, TensorSpec] = {}  # values of `@main` that lie on the host between calls
    for number, argument in enumerate(exported.arguments):
        # With padding, which the argument of the caller has not.
        held = replace(values[number].spec, memory=argument.value.spec.memory)
        buffer = emitter.meshes[argument.value.mesh].define(held)
        emitter.bind(number, buffer)
        arguments[argument.value.mesh].append((number, buffer))
        if argument.value.spec.memory == "host" and argument.alias is not None:
            resting[number] = resting[exported.main.results[argument.alias]] = held
    for position, op in enumerate(exported.main.ops):
        if isinstance(op, Call):
            inputs = tuple(
                emitter.move(op.mesh, emitter.use(value), values[value].spec)
                if value in resting
                else emitter.use(value)
                for value in op.inputs
            )
            outputs: list[tuple[Hashable, TensorSpec]] = [
                (value, values[value].spec) for value in op.outputs
            ]
            emitter.call(op, inputs, outputs, label_of(op.kind, op.stage))
            for value in op.outputs:
                if value in resting:
                    stored = emitter.move(op.mesh, emitter.use(value), resting[value])
                    emitter.bind(value, stored)
        elif isinstance(op, Transfer):
            source, target = values[op.input], (op.output, values[op.output])
            emitter.transfer(op, position, (op.input, source), target)
            emitter.expect(op, position, source, target)
        elif isinstance(op, Loop):
            lower_loop(emitter, op, position)
    return _finish(exported, emitter, arguments)


def _finish(
    exported: ExportedProgram, emitter: Emitter, arguments: dict[str, list[tuple[int, int]]]
) -> Program:
    results: dict[str, list[tuple[int, int]]] = {mesh.name: [] for mesh in exported.meshes}
    for number, (value, result) in enumerate(
        zip(exported.main.results, exported.results, strict=True)
    ):
        results[result.value.mesh].append((number, emitter.use(value)))
    versions = {
        number: each.version_of
        for number, each in enumerate(exported.arguments)
        if each.version_of is not None
    }
    hidden = {exported.arguments[number].alias for number in versions}
    parts = []
    for name, part in emitter.meshes.items():
        inputs = dict(arguments[name])
        shapes = {
            buffer: listed[number].value.spec.shape
            for listed, pairs in (
                (exported.arguments, arguments[name]),
                (exported.results, results[name]),
            )
            for number, buffer in pairs
            if listed[number].value.spec.shape != part.buffers[buffer].shape
        }
        feedback = _feedback(part, inputs, dict(results[name]), exported)
        program = MeshProgram(
            mesh=part.mesh,
            buffers=(),
            arguments=tuple(pair for pair in inputs.items() if pair[0] not in versions),
            indices=tuple(sorted(part.indices.items())),
            instructions=(),
            results=tuple(pair for pair in results[name] if pair[0] not in hidden),
            feedback=feedback,
            functions=tuple(emitter.functions[function] for function in part.functions),
            versions=tuple(
                (versions[number], buffer)
                for number, buffer in inputs.items()
                if number in versions
            ),
            shapes=tuple(sorted(shapes.items())),
        )
        parts.append(program)
    # Combined before they are ordered: what is received in order is whole messages.
    lists = order_sends(combine_transfers([part.instructions for part in emitter.meshes.values()]))
    # Last: only now it is settled which instruction reads a buffer last.
    finished = (
        insert_frees(program, instructions, emitter.meshes[program.mesh.name].buffers)
        for program, instructions in zip(parts, lists, strict=True)
    )
    return Program(
        tuple(each for number, each in enumerate(exported.arguments) if number not in versions),
        tuple(each for number, each in enumerate(exported.results) if number not in hidden),
        emitter.routes,
        tuple(finished),
    )


def _feedback(
    part: MeshEmitter, arguments: dict[int, int], results: dict[int, int], exported: ExportedProgram
) -> tuple[tuple[int, int], ...]:
    """Where each state argument's next value comes from: a buffer of its own, copied if anything
    else keeps it."""
    state = {number: exported.arguments[number].alias for number in arguments}
    kept = {arguments[number] for number, alias in state.items() if alias is None} | set(
        part.indices.values()
    )
    pairs: list[tuple[int, int]] = []
    for number, alias in state.items():
        if alias is None:
            continue
        buffer = results[alias]
        if buffer in kept:
            copied = part.define(part.buffers[buffer])
            part.instructions.append(Copy(buffer, copied))
            buffer = copied
        kept.add(buffer)
        pairs.append((buffer, arguments[number]))
    return tuple(pairs)
