"""Where a worker stands, told by any thread while a step runs, and as text."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any

from shardopt.runtime.actions.context import Context
from shardopt.runtime.program.instructions import (
    Allgather,
    Broadcast,
    Instruction,
    Recv,
    Reshard,
    Run,
)
from shardopt.runtime.program.text import brief_instruction, place
from shardopt.runtime.transports.mailbox import LinkStates

# Plain values, so that they pass over any connection: "busy", "step", "position", "place",
# "seconds", "waits" and "doing" as text; "program", the name of an attached one, else ""; "waiting"
# (for a message), "missing" (workers of whose part of it nothing is here, or on its way in),
# "sending" (workers to whom something is on its way out), "pending" (messages to send) and
# "received" (bytes so far).
WorkerStatus = Mapping[str, Any]


def worker_status(context: Context, position: int, since: float, busy: bool) -> WorkerStatus:
    """`since` is when the worker came to the instruction at `position` (`time.monotonic`), or, if
    it is not `busy`, when its last step ended."""
    program = context.program
    at = program.instructions[position] if position < len(program.instructions) else None
    # Before the links: what goes from one to the other meanwhile is seen twice, and not missed.
    pending, targets = context.sender.pending, context.sender.targets
    links = context.transport.links()
    under_way = [
        brief_instruction(program.instructions[number]) for number, _ in context.in_flight.copy()
    ]
    return {
        "program": "",
        "busy": busy,
        "step": context.step,
        "position": position,
        "place": place(program, context.step, position),
        "seconds": monotonic() - since,
        "waits": _waits_for(at, bool(under_way), pending) if busy else "the next step",
        "waiting": context.awaits is not None,
        "missing": _missing(context, links),
        "sending": sorted(targets | links.sending),
        "pending": pending,
        "received": links.received_bytes,
        "doing": [*under_way, *([f"{pending} messages to send"] if pending else [])],
    }


def _missing(context: Context, links: LinkStates) -> list[str]:
    tag = context.awaits
    if tag is None:
        return []
    return [
        source
        for source in context.transport.mailbox.missing(context.step, tag)
        if source in links.quiet
    ]


def status_text(worker: str, status: WorkerStatus | None) -> str:
    """One line; None stands for a worker that does not answer."""
    mesh, _, host = worker.partition("/")
    who = f"mesh '{mesh}', host {int(host or 0)}"
    if status is None:
        return f"{who}: does not answer"
    if not status["busy"]:
        return f"{who}: idle for {status['seconds']:.1f} s, {status['step']} steps done"
    doing = f"; under way: {', '.join(status['doing'])}" if status["doing"] else ""
    return (
        f"{who}: {status['place']} for {status['seconds']:.1f} s, waits for "
        f"{status['waits']}{doing}"
    )


def _waits_for(at: Instruction | None, executing: bool, pending: int) -> str:
    match at:
        case Recv(tag=tag, source=source):
            return f"message #{tag} from mesh '{source}'"
        case Allgather() | Broadcast() | Reshard():
            return "its values, or for other hosts of the mesh"
        case Run():
            return (
                "an earlier execution, or for a message that reads what it writes over"
                if executing
                else "the device"
            )
        case None:
            return "all that is under way"
    return f"the device{' and what is being sent' if pending else ''}"
