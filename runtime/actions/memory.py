"""COPY, MOVE and FREE."""

from __future__ import annotations

from shardopt.runtime.actions.context import Action, Context
from shardopt.runtime.program.instructions import Copy, Free, Move


def copy_action(context: Context, position: int, copy: Copy) -> Action:
    def action() -> None:
        context.buffers[copy.output] = context.devices.copy(context.buffers[copy.input])

    return action


def move_action(context: Context, position: int, move: Move) -> Action:
    """Only started here: what reads the other copy waits for it, and so does the memory of this
    one."""
    spec = context.program.buffers[move.output]

    def action() -> None:
        context.buffers[move.output] = context.devices.move(context.buffers[move.input], spec)

    return action


def free_action(context: Context, position: int, free: Free) -> Action:
    def action() -> None:
        for buffer in free.buffers:
            context.buffers[buffer] = None

    return action
