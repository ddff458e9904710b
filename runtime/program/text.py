"""A program as text, one instruction a line, for people and for FileCheck."""

from __future__ import annotations

from collections.abc import Iterator

from shardopt.forms.exported_program import TensorSpec
from shardopt.forms.reshard_steps import format_slice
from shardopt.runtime.program.instructions import (
    Allgather,
    Broadcast,
    Copy,
    Instruction,
    MeshProgram,
    Move,
    Program,
    Recv,
    Reshard,
    Route,
    Run,
    Send,
    writes,
)


def format_program(program: Program) -> str:
    """The program as text, one instruction a line, for people and for FileCheck."""
    lines: list[str] = []
    for number, route in enumerate(program.routes):
        lines.extend(_format_route(number, route))
    for part in program.meshes:
        lines.extend(_format_mesh(part, program))
    return "\n".join(lines) + "\n"


def _format_route(number: int, route: Route) -> Iterator[str]:
    yield f"route {number}: {route.source} -> {route.target}"
    for index, piece in enumerate(route.pieces):
        yield f"  piece {index} = shard {piece.shard} {format_slice(piece.slice)}"
    for place in route.placements:
        yield f"  piece {place.piece} -> shard {place.shard} {format_slice(place.slice)}"
    for move in route.exchanges:
        yield (
            f"  shard {move.source_shard} {format_slice(move.source_slice)} -> "
            f"shard {move.target_shard} {format_slice(move.target_slice)}"
        )


def _format_mesh(part: MeshProgram, program: Program) -> Iterator[str]:
    yield f"mesh {part.mesh} devices {list(part.mesh.devices)}"
    for number, buffer in part.arguments:
        keeping = "state" if buffer in part.state_buffers else "kept"
        yield (
            f"  %{buffer} = argument {number} '{program.arguments[number].label}' "
            f"{part.array(buffer)} ({keeping})"
        )
    for number, buffer in part.versions:
        yield f"  %{buffer} = version of argument {number} {part.buffers[buffer]} (state)"
    for microbatch, buffer in part.indices:
        yield f"  %{buffer} = index {microbatch}"
    for instruction in part.instructions:
        yield "  " + format_instruction(instruction, part.buffers)
    for number, buffer in part.results:
        yield f"  result {number} '{program.results[number].label}' = %{buffer}"
    for buffer, target in part.feedback:
        yield f"  next %{target} = %{buffer}"


def format_instruction(instruction: Instruction, buffers: tuple[TensorSpec, ...] = ()) -> str:
    """One line; with `buffers`, defined buffers are followed by what they hold."""
    defined = ", ".join(_define(buffer, buffers) for buffer in writes(instruction))
    match instruction:
        case Run(function=function, inputs=inputs, donated=donated, label=label):
            tail = f" donates {_names(donated)}" if donated else ""
            return (
                f"{defined}{' = ' if defined else ''}RUN @{function}({_names(inputs)}){tail} "
                "// "
                f"{label}"
            )
        case Send(tag=tag, buffers=sent, target=target, routes=routes):
            return f"SEND #{tag} {_names(sent)} to {target} {_routes(routes)}"
        case Recv(tag=tag, source=source, routes=routes):
            return f"{defined} = RECV #{tag} from {source} {_routes(routes)}"
        case Allgather(tag=tag, buffer=buffer, route=route):
            return f"ALLGATHER #{tag} %{buffer} route {route}"
        case Broadcast(tag=tag, buffer=buffer, route=route):
            return f"BROADCAST #{tag} %{buffer} route {route}"
        case Reshard(tag=tag, input=buffer, route=route):
            return f"{defined} = RESHARD #{tag} %{buffer} route {route}"
        case Copy(input=buffer):
            return f"{defined} = COPY %{buffer}"
        case Move(input=buffer):
            return f"{defined} = MOVE %{buffer}"
    return f"FREE {_names(instruction.buffers)}"


def place(part: MeshProgram, step: int, position: int) -> str:
    """Where in a step a worker is, for messages; behind the last instruction it waits for what is
    under way."""
    if position >= len(part.instructions):
        return f"step {step}, end of step"
    return (
        f"step {step}, instruction {position} ({format_instruction(part.instructions[position])})"
    )


def brief_instruction(instruction: Instruction) -> str:
    """A few words: which function a RUN calls and what it is in the plan, without its buffers."""
    if isinstance(instruction, Run):
        return f"RUN @{instruction.function} // {instruction.label}"
    return format_instruction(instruction)


def _define(buffer: int, buffers: tuple[TensorSpec, ...]) -> str:
    return f"%{buffer}: {buffers[buffer]}" if buffers else f"%{buffer}"


def _names(buffers: tuple[int, ...]) -> str:
    return ", ".join(f"%{buffer}" for buffer in buffers)


def _routes(routes: tuple[int, ...]) -> str:
    return f"route{'s' if len(routes) > 1 else ''} {', '.join(map(str, routes))}"
