"""The order in which a mesh sends, and whether all meshes reach the ends of their lists.

SEND goes out as soon as its value is there. Where that could block for ever if a send waited for
its receiver to come to RECV, the sends of all meshes are put into the order of receipt
(`shardopt.schedule.exchange`). Messages to different meshes do not wait for each other: a worker
sends to each on a thread or a stream of its own."""

from __future__ import annotations

from collections.abc import Sequence

from shardopt.runtime.program.instructions import Instruction, Program, Recv, Run, Send
from shardopt.runtime.program.text import format_instruction
from shardopt.schedule.exchange import Do, Step, Steps, describe, in_order_of_receipt, run_exchange


def order_sends(lists: Sequence[Sequence[Instruction]]) -> list[list[Instruction]]:
    """The lists of all meshes, with SENDs moved back where their order needs it."""
    steps = steps_of(lists)
    # Mostly nothing blocks, and a value goes out as early as it is there.
    if not run_exchange(steps, rendezvous=True, lanes=True).blocks:
        return [list(instructions) for instructions in lists]
    sends = {
        each.tag: each for instructions in lists for each in instructions if isinstance(each, Send)
    }
    reordered = []
    for instructions, ordered in zip(lists, in_order_of_receipt(steps), strict=True):
        others = iter([each for each in instructions if not isinstance(each, Send)])
        reordered.append([sends[value] if do is Do.SEND else next(others) for do, value in ordered])
    return reordered


def deadlock(program: Program, rendezvous: bool) -> str:
    """The circle of waits in which the lists end, empty if all reach their ends. Instructions are
    counted from 0."""
    lists = [part.instructions for part in program.meshes]
    steps = steps_of(lists)
    outcome = run_exchange(steps, rendezvous, lanes=True)
    if not outcome.blocks:
        return ""

    def mesh_name(mesh: int, at: int) -> str:
        part = program.meshes[mesh]
        return (
            f"mesh {part.mesh.name}, instruction {at} ({format_instruction(part.instructions[at])})"
        )

    return describe(steps, outcome, mesh_name, "#{}".format)


def steps_of(lists: Sequence[Sequence[Instruction]]) -> Steps:
    """One step for every instruction; a RUN that writes over a buffer waits until the buffer is
    sent."""
    return tuple(tuple(_of_mesh(instructions)) for instructions in lists)


def _of_mesh(instructions: Sequence[Instruction]) -> list[Step]:
    sends: dict[int, int] = {}  # buffer -> how many sends of the mesh are through when its own are
    steps: list[Step] = []
    count = 0
    for each in instructions:
        if isinstance(each, Send):
            count += 1
            sends.update((buffer, count) for buffer in each.buffers)
            steps.append((Do.SEND, each.tag))
        elif isinstance(each, Recv):
            steps.append((Do.RECV, each.tag))
        else:
            written = each.donated if isinstance(each, Run) else ()
            steps.append((Do.SENT, max((sends.get(buffer, 0) for buffer in written), default=0)))
    return steps
