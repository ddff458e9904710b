"""From instructions to closures: what can be worked out before the first step is, once."""

from __future__ import annotations

from collections.abc import Callable

from shardopt.runtime.actions.context import Action, Context
from shardopt.runtime.actions.direct import (
    direct_complete_action,
    direct_recv_action,
    direct_send_action,
    is_direct,
)
from shardopt.runtime.actions.memory import copy_action, free_action, move_action
from shardopt.runtime.actions.messages import (
    complete_action,
    recv_action,
    reshard_action,
    send_action,
)
from shardopt.runtime.actions.run import run_action
from shardopt.runtime.program.instructions import (
    Allgather,
    Broadcast,
    Copy,
    Free,
    Instruction,
    Move,
    Recv,
    Reshard,
    Run,
    Send,
)

# One maker for every kind of instruction: (context, position in the list, instruction) -> what a
# step calls.
_MAKERS: dict[type, Callable[..., Action]] = {
    Run: run_action,
    Send: send_action,
    Recv: recv_action,
    Allgather: complete_action,
    Broadcast: complete_action,
    Reshard: reshard_action,
    Copy: copy_action,
    Move: move_action,
    Free: free_action,
}


# Of messages that go from GPU to GPU.
_DIRECT_MAKERS: dict[type, Callable[..., Action]] = {
    Send: direct_send_action,
    Recv: direct_recv_action,
    Allgather: direct_complete_action,
    Broadcast: direct_complete_action,
}


def make_actions(context: Context) -> list[Action]:
    """One closure an instruction, in list order."""
    return [
        _make(context, position, each) for position, each in enumerate(context.program.instructions)
    ]


def _make(context: Context, position: int, instruction: Instruction) -> Action:
    makers = _DIRECT_MAKERS if is_direct(context, instruction) else _MAKERS
    return makers[type(instruction)](context, position, instruction)
