"""COPY, MOVE and FREE."""

from __future__ import annotations

from shardopt.runtime.actions.context import Action, Context
from shardopt.runtime.program.instructions import Copy, Free, Move


def copy_action(context: Context, position: int, copy: Copy) -> Action:
    def action() -> None:
        context.buffers[copy.output] = context.devices.copy(context.buffers[copy.input])

    return action


def move_action(context: Context, position: int, move: Move) -> Action:
    """Nothing runs beside it, so that devices never hold what lies on their host for more than one
    RUN: fetching begins when what ran before is done, and the next RUN when what is stored is."""
    spec = context.program.buffers[move.output]
    stores = spec.memory == "host"

    def action() -> None:
        if not stores:
            while context.in_flight:
                context.await_run()
            context.await_stores()
        moved = context.devices.move(context.buffers[move.input], spec)
        context.buffers[move.output] = moved
        if stores:
            context.storing.append(moved)

    return action


def free_action(context: Context, position: int, free: Free) -> Action:
    def action() -> None:
        for buffer in free.buffers:
            context.buffers[buffer] = None

    return action
