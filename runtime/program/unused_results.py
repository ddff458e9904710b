"""Results of functions that no instruction reads are not made.

The program before a loop of one microbatch makes zeros for its sums, which that microbatch sets
rather than adds to: they would be allocated, filled and freed in every step. A function loses what
none of its runs on a mesh has a use for, and a run that is left with nothing to make is not made
itself."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from shardopt.forms.exported_program import StageFunction
from shardopt.runtime.program.instructions import (
    Free,
    Instruction,
    MeshProgram,
    Program,
    Run,
    reads,
)

# Bytecode of a function, and the numbers of the results that are wanted -> that of one with these,
# and with those that take an argument's buffer; and the numbers of all of them.
KeepResults = Callable[[bytes, Collection[int]], tuple[bytes, tuple[int, ...]]]


def drop_unused_results(program: Program, keep_results: KeepResults) -> Program:
    return replace(
        program, meshes=tuple(_without_unused(part, keep_results) for part in program.meshes)
    )


def _without_unused(part: MeshProgram, keep_results: KeepResults) -> MeshProgram:
    used = {buffer for each in part.instructions for buffer in reads(each)}
    used |= {buffer for _, buffer in part.results} | {buffer for buffer, _ in part.feedback}
    wanted: dict[str, set[int]] = {}
    for each in part.instructions:
        if isinstance(each, Run):
            of_run = (k for k, buffer in enumerate(each.outputs) if buffer in used)
            wanted.setdefault(each.function, set()).update(of_run)
    kept: dict[str, tuple[int, ...]] = {}
    functions: list[StageFunction] = []
    for function in part.functions:
        if len(wanted[function.name]) < len(function.results):
            bytecode, numbers = keep_results(function.bytecode, wanted[function.name])
            results = tuple(function.results[number] for number in numbers)
            kept[function.name] = numbers
            function = replace(function, bytecode=bytecode, results=results)
        if function.results or function.donates:
            functions.append(function)
    if not kept:
        return part
    instructions: list[Instruction] = []
    dropped: set[int] = set()
    for each in part.instructions:
        match each:
            case Run(function=name, outputs=buffers) if name in kept:
                outputs = tuple(buffers[number] for number in kept[name])
                dropped |= set(buffers) - set(outputs)
                if outputs or each.donated:
                    instructions.append(replace(each, outputs=outputs))
            case Free(buffers=buffers):
                left = tuple(buffer for buffer in buffers if buffer not in dropped)
                instructions += [Free(left)] if left else []
            case _:
                instructions.append(each)
    return replace(part, instructions=tuple(instructions), functions=tuple(functions))
