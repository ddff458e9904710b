"""COPY and FREE."""

from __future__ import annotations

from shardopt.runtime.actions.context import Action, Context
from shardopt.runtime.program.instructions import Copy, Free


def copy_action(context: Context, position: int, copy: Copy) -> Action:
    def action() -> None:
        context.buffers[copy.output] = context.devices.copy(context.buffers[copy.input])

    return action


def free_action(context: Context, position: int, free: Free) -> Action:
    def action() -> None:
        for buffer in free.buffers:
            context.buffers[buffer] = None

    return action
