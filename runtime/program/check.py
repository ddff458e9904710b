"""The check of a program before it runs: executables do not check their inputs, and a wait can be
for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from shardopt.forms.exported_program import Memory, StageFunction
from shardopt.runtime.program.check_hosts import find_host_faults
from shardopt.runtime.program.check_routes import find_route_faults
from shardopt.runtime.program.hosts import hosts_of
from shardopt.runtime.program.instructions import (
    Allgather,
    Broadcast,
    Copy,
    Free,
    Instruction,
    MeshProgram,
    Move,
    Program,
    Recv,
    Reshard,
    Run,
    Send,
    reads,
    writes,
)
from shardopt.runtime.program.sends import deadlock
from shardopt.runtime.program.text import format_instruction
from shardopt.runtime.program.wellformed import find_malformed


def check_program(program: Program) -> tuple[str, ...]:
    """Every fault of the program, empty for a good one.

    Checked: numbers and names exist and fit the frame (`wellformed.py`); routes carry each element
    once (`check_routes.py`); buffers are defined once, before use, completed where they have only
    landed, and not used after FREE or donation; functions get what they expect; kept buffers
    survive; nothing is left over; SEND and RECV pair up with equal routes; hosts of a mesh send
    what others expect (`check_hosts.py`); and the lists run to their ends whether SENDs wait for
    their receivers or not."""
    # First, as all other checks look numbers up without a test.
    if malformed := tuple(find_malformed(program)):
        return malformed
    faults = list(find_route_faults(program))
    faults.extend(fault for part in program.meshes for fault in _check_mesh(part, program))
    faults.extend(_check_pairs(program))
    # These run lists against each other, which tells nothing about lists that are wrong.
    return tuple(faults) or (
        *find_host_faults(program, hosts_of(program)),
        *_check_progress(program),
    )


def _check_mesh(part: MeshProgram, program: Program) -> Iterator[str]:
    where = f"mesh {part.mesh.name}"
    live = set(part.initial_buffers)
    defined = set(live)
    # Buffers that wait to be completed, and the routes that they came by.
    landed: dict[int, int] = {}
    kept = part.kept_buffers
    functions = {function.name: function for function in part.functions}
    for position, instruction in enumerate(part.instructions):
        consumed = _consumed(instruction)
        faults = [*_check_buffers(instruction, live, defined)]
        faults += [
            f"consumes %{buffer}, which the next step needs"
            for buffer in sorted(kept.intersection(consumed))
        ]
        faults += _check_types(instruction, part, program, functions)
        faults += _check_completion(instruction, landed, program)
        if faults:
            at = f"{where}, instruction {position} ({format_instruction(instruction)})"
            yield from (f"{at}: {fault}" for fault in faults)
        live.difference_update(consumed)
        live.update(writes(instruction))
        defined.update(writes(instruction))
    needed = [buffer for _, buffer in part.results] + [buffer for buffer, _ in part.feedback]
    for buffer in sorted(set(needed) - live):
        yield (
            f"{where}: result %{buffer} is {'gone' if buffer in defined else 'not defined'} at "
            "the end"
        )
    for buffer in sorted(landed):
        yield f"{where}: %{buffer} has landed by route {landed[buffer]}, but is never completed"
    for buffer in sorted(live - set(needed) - kept):
        yield f"{where}: %{buffer} is never freed"
    yield from _check_feedback(part, where)


def _check_buffers(instruction: Instruction, live: set[int], defined: set[int]) -> Iterator[str]:
    freed = instruction.buffers if isinstance(instruction, Free) else ()
    for buffer in (*reads(instruction), *freed):
        if buffer not in live:
            yield f"%{buffer} is {'gone' if buffer in defined else 'not defined'}"
    for buffer in writes(instruction):
        if buffer in defined:
            yield f"%{buffer} is defined twice"


def _check_completion(
    instruction: Instruction, landed: dict[int, int], program: Program
) -> Iterator[str]:
    """What has landed is completed once, by its own route, before anything else touches it; keeps
    `landed` up."""
    if isinstance(instruction, Allgather | Broadcast):
        buffer, route = instruction.buffer, instruction.route
        if (
            landed.pop(buffer, None) != route
            or type(instruction) is not program.routes[route].completion
        ):
            yield f"%{buffer} has nothing to complete by route {route} in this way"
        return
    freed = instruction.buffers if isinstance(instruction, Free) else ()
    for buffer in sorted({*reads(instruction), *freed} & landed.keys()):
        yield f"%{buffer} has landed by route {landed[buffer]}, but is not complete"
    for buffer, route in _landings(instruction):
        if program.routes[route].exchanges:
            landed[buffer] = route


def _landings(instruction: Instruction) -> tuple[tuple[int, int], ...]:
    match instruction:
        case Recv(buffers=buffers, routes=routes):
            return tuple(zip(buffers, routes, strict=False))
        case Reshard(output=buffer, route=route):
            return ((buffer, route),)
    return ()


def _consumed(instruction: Instruction) -> tuple[int, ...]:
    match instruction:
        case Free(buffers=buffers) | Run(donated=buffers):
            return buffers
    return ()


def _check_feedback(part: MeshProgram, where: str) -> Iterator[str]:
    sources = Counter(buffer for buffer, _ in part.feedback)
    for buffer, target in part.feedback:
        if sources[buffer] > 1 or buffer in part.kept_buffers:
            yield f"{where}: %{buffer} becomes argument %{target} but is not its own"
        if part.buffers[buffer] != part.buffers[target]:
            yield (
                f"{where}: %{buffer} ({part.buffers[buffer]}) becomes %{target} "
                f"({part.buffers[target]})"
            )


def _check_types(
    instruction: Instruction,
    part: MeshProgram,
    program: Program,
    functions: Mapping[str, StageFunction],
) -> Iterator[str]:
    """Buffers against the function's signature or the route's ends."""
    pairs: list[tuple[int, object]] = []
    match instruction:
        case Run(function=name, inputs=inputs, outputs=outputs, donated=donated):
            function = functions.get(name)
            if function is None:
                yield f"function @{name} is not in the program"
                return
            if (len(inputs), len(outputs)) != (len(function.arguments), len(function.results)):
                yield (
                    f"@{name} takes {len(function.arguments)} and returns "
                    f"{len(function.results)} buffers"
                )
                return
            if donated != tuple(inputs[number] for number in function.donates):
                yield (
                    f"@{name} consumes arguments {list(function.donates)}, which is not what is "
                    "listed as donated"
                )
            pairs = [
                *zip(inputs, function.arguments, strict=True),
                *zip(outputs, function.results, strict=True),
            ]
            for buffer in sorted(set(donated)):
                if inputs.count(buffer) > 1:
                    yield f"%{buffer} is donated and passed twice"
        case Send(buffers=buffers, routes=routes) | Recv(buffers=buffers, routes=routes):
            if len(buffers) != len(routes) or not buffers:
                yield f"{len(buffers)} buffers travel by {len(routes)} routes"
                return
            ends = [program.routes[route] for route in routes]
            specs = [
                route.source if isinstance(instruction, Send) else route.target for route in ends
            ]
            pairs = [*zip(buffers, specs, strict=True)]
        case Allgather(buffer=buffer, route=route) | Broadcast(buffer=buffer, route=route):
            pairs = [(buffer, program.routes[route].target)]
        case Reshard(input=source, output=target, route=route):
            pairs = [(source, program.routes[route].source), (target, program.routes[route].target)]
        case Copy(input=source, output=target):
            pairs = [(target, part.buffers[source])]
        case Move(input=source, output=target):
            other: Memory = "device" if part.buffers[source].memory == "host" else "host"
            pairs = [(target, replace(part.buffers[source], memory=other))]
    for buffer, expected in pairs:
        if part.buffers[buffer] != expected:
            yield f"%{buffer} is {part.buffers[buffer]}, expected {expected}"


def _check_pairs(program: Program) -> Iterator[str]:
    """Each tag has one SEND and one RECV, on the meshes that name each other, over one route."""
    sends: dict[int, list[tuple[str, Send]]] = {}
    recvs: dict[int, list[tuple[str, Recv]]] = {}
    for part in program.meshes:
        for instruction in part.instructions:
            if isinstance(instruction, Send):
                sends.setdefault(instruction.tag, []).append((part.mesh.name, instruction))
            elif isinstance(instruction, Recv):
                recvs.setdefault(instruction.tag, []).append((part.mesh.name, instruction))
    inside = Counter(
        each.tag
        for part in program.meshes
        for each in part.instructions
        if isinstance(each, Allgather | Broadcast | Reshard)
    )
    for tag, count in sorted(inside.items()):
        if count > 1 or tag in sends or tag in recvs:
            yield f"tag #{tag}: names more than one transfer"
    for tag in sorted({*sends, *recvs}):
        sent, received = sends.get(tag, []), recvs.get(tag, [])
        if (len(sent), len(received)) != (1, 1):
            yield (
                f"tag #{tag}: expected one SEND and one RECV, found {len(sent)} and {len(received)}"
            )
            continue
        (source, send), (target, recv) = sent[0], received[0]
        if (send.target, recv.source) != (target, source):
            yield (
                f"tag #{tag}: {source} sends to {send.target}, but {target} receives from "
                f"{recv.source}"
            )
        if send.routes != recv.routes:
            sent_by, taken_by = (", ".join(map(str, each.routes)) for each in (send, recv))
            yield (
                f"tag #{tag}: {source} sends by route {sent_by}, {target} receives by route "
                f"{taken_by}"
            )


def _check_progress(program: Program) -> Iterator[str]:
    """Both ways in which a transport may treat sends."""
    for rendezvous in (False, True):
        circle = deadlock(program, rendezvous)
        if circle:
            yield (
                f"deadlock{' where sends wait for their receivers' if rendezvous else ''}: {circle}"
            )
            return
