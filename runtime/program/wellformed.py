"""Whether the numbers and names in a program exist at all: the check before all others, which rely
on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from shardopt.dialect.dtypes import numpy_dtype
from shardopt.forms.exported_program import Argument, ProgramResult, TensorSpec
from shardopt.mesh.parts import Part, misfits, misreplaced
from shardopt.runtime.program.instructions import (
    Allgather,
    Broadcast,
    Free,
    MeshProgram,
    Program,
    Recv,
    Reshard,
    Send,
    reads,
    writes,
)
from shardopt.runtime.program.text import brief_instruction


def find_malformed(program: Program) -> Iterator[str]:
    """Faults in the frame: meshes, buffers, arguments, results, functions, and what instructions
    refer to."""
    names = [part.mesh.name for part in program.meshes]
    yield from (
        f"mesh {name} stands in the program {count} times" for name, count in _repeated(names)
    )
    for part in program.meshes:
        where = f"mesh {part.mesh.name}"
        yield from (f"{where}: {fault}" for fault in _of_frame(part, program))
        wrong = {
            spec: fault for spec in dict.fromkeys(part.buffers) if (fault := _of_spec(spec, part))
        }
        yield from (
            f"{where}: %{number}: {wrong[spec]}"
            for number, spec in enumerate(part.buffers)
            if spec in wrong
        )
        for position, each in enumerate(part.instructions):
            freed = each.buffers if isinstance(each, Free) else ()
            missing = [
                buffer
                for buffer in (*reads(each), *writes(each), *freed)
                if not 0 <= buffer < len(part.buffers)
            ]
            faults = [f"%{buffer} does not exist" for buffer in missing]
            faults.extend(_of_references(each, program, names))
            at = f"{where}, instruction {position} ({brief_instruction(each)})" if faults else ""
            yield from (f"{at}: {fault}" for fault in faults)
    yield from _of_homes(program)


def _of_frame(part: MeshProgram, program: Program) -> Iterator[str]:
    numbers = [buffer for _, buffer in (*part.arguments, *part.versions, *part.indices)]
    yield from (f"%{buffer} is defined {count} times" for buffer, count in _repeated(numbers))
    named = [
        *numbers,
        *(buffer for _, buffer in part.results),
        *(buffer for pair in part.feedback for buffer in pair),
        *(buffer for buffer, _ in part.shapes),
    ]
    missing = sorted({buffer for buffer in named if not 0 <= buffer < len(part.buffers)})
    yield from (f"%{buffer} does not exist" for buffer in missing)
    yield from (
        f"function @{name} is there {count} times"
        for name, count in _repeated(f.name for f in part.functions)
    )
    for function in part.functions:
        if not set(function.donates) <= set(range(len(function.arguments))):
            yield (
                f"function @{function.name} consumes arguments {list(function.donates)}, which "
                "do not all exist"
            )
    arguments = {buffer for _, buffer in (*part.arguments, *part.versions)}
    for _, target in part.feedback:
        if target not in arguments:
            yield f"%{target} is state, but no argument"
    if missing:
        return
    for buffer, shape in part.shapes:
        spec = part.buffers[buffer]
        if _of_spec(spec, part):  # said of the buffer
            continue
        if len(shape) != len(spec.shape) or min(shape, default=0) < 0:
            yield f"%{buffer} is {spec}, but its array has the shape {list(shape)}"
        elif spec.sharding.padded_shape(part.mesh, shape) != spec.shape:
            yield f"%{buffer} is {spec}, which the tiles of {list(shape)} do not make up"
    for what, pairs, known in (
        ("argument", part.arguments, program.arguments),
        ("argument", part.versions, program.arguments),
        ("result", part.results, program.results),
    ):
        for number, buffer in pairs:
            if not 0 <= number < len(known):
                yield f"{what} {number} does not exist"
            elif known[number].value.spec != part.array(buffer):
                yield (
                    f"{what} {number} is {known[number].value.spec}, but %{buffer} is "
                    f"{part.array(buffer)}"
                )


def _of_spec(spec: TensorSpec, part: MeshProgram) -> str:
    try:
        numpy_dtype(spec.dtype)
        spec.sharding.tiles(part.mesh, spec.shape)
    except (ValueError, TypeError) as error:
        return str(error)
    return ""


def _of_references(instruction: object, program: Program, names: list[str]) -> Iterator[str]:
    routes: tuple[int, ...] = ()
    match instruction:
        case Send(routes=routes, target=mesh) | Recv(routes=routes, source=mesh):
            if len(program.meshes) > 1 and mesh not in names:
                yield f"mesh {mesh} does not exist"
        case Allgather(route=route) | Broadcast(route=route) | Reshard(route=route):
            routes = (route,)
    for route in routes:
        if not 0 <= route < len(program.routes):
            yield f"route {route} does not exist"


def _of_homes(program: Program) -> Iterator[str]:
    """Each argument and result has one home, the mesh of its value; state feeds the argument that
    its alias names."""
    rows: tuple[
        tuple[
            str,
            tuple[Argument | ProgramResult, ...],
            list[tuple[MeshProgram, tuple[tuple[int, int], ...]]],
        ],
        ...,
    ] = (
        ("argument", program.arguments, [(part, part.arguments) for part in program.meshes]),
        ("result", program.results, [(part, part.results) for part in program.meshes]),
    )
    for what, listed, pairs in rows:
        homes: dict[int, list[str]] = {}
        for part, numbers in pairs:
            for number, _ in numbers:
                homes.setdefault(number, []).append(part.mesh.name)
        for number, each in enumerate(listed):
            meshes = homes.get(number, [])
            if meshes != [each.value.mesh]:
                yield (
                    f"{what} {number} '{each.name}': expected on mesh {each.value.mesh}, found "
                    f"on {', '.join(meshes)}"
                )
    yield from _of_parts(program)
    for part in program.meshes:
        results = dict(part.results)
        feedback = {target: source for source, target in part.feedback}
        for number, buffer in part.arguments:
            if not 0 <= number < len(program.arguments):
                continue
            alias = program.arguments[number].alias
            if (alias is None) != (buffer not in feedback) or (
                alias is not None and alias not in results
            ):
                yield (
                    f"mesh {part.mesh.name}: argument {number} is replaced by result {alias}, "
                    "but not in the list"
                )
        for number, buffer in part.versions:
            if buffer not in feedback or number not in dict(part.arguments):
                yield (
                    f"mesh {part.mesh.name}: %{buffer} is a version of argument {number}, which is "
                    "not on this mesh, or has no successor"
                )


def _of_parts(program: Program) -> Iterator[str]:
    """Parts make up wholes, and stand behind all that are none."""
    parts: dict[str, dict[int, Part]] = {}
    sides: tuple[tuple[str, Sequence[Argument | ProgramResult]], ...] = (
        ("argument", program.arguments),
        ("result", program.results),
    )
    for noun, listed in sides:
        found = {number: each.part for number, each in enumerate(listed) if each.part is not None}
        parts[noun] = found
        yield from misfits(noun, found, [each.value.spec.shape for each in listed])
        others = [number for number, part in found.items() if part.whole != number]
        if others != list(range(len(listed) - len(others), len(listed))):
            yield f"expected parts of {noun}s behind all other {noun}s"
    replaced = {
        number: each.alias
        for number, each in enumerate(program.arguments)
        if each.alias is not None
    }
    yield from misreplaced(parts["argument"], parts["result"], replaced)


def _repeated(items: Iterable[object]) -> Iterator[tuple[object, int]]:
    return ((item, count) for item, count in Counter(items).items() if count > 1)
