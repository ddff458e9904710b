"""SEND, RECV and RESHARD: the pieces of a route leave the shards of one sharding and land in those of another, which
ALLGATHER and BROADCAST complete.

What has landed and is not complete is kept as one host array for each shard; devices take it over once it is.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from shardopt.runtime.actions.context import Action, Context
from shardopt.runtime.devices.tiles import RouteSource, RouteTarget, decode
from shardopt.runtime.devices.xla import DeviceArray
from shardopt.runtime.program.instructions import Allgather, Broadcast, Recv, Reshard, Send


def send_action(context: Context, position: int, send: Send) -> Action:
    sources = [RouteSource(context.routes[route]) for route in send.routes]

    def deliver(arrays: list[DeviceArray], step: int) -> None:
        try:
            pieces = [
                piece
                for source, array in zip(sources, arrays, strict=True)
                for piece in source.cut(context.devices.shards(array))
            ]
            if context.copy_pieces:
                pieces = [piece.copy() for piece in pieces]
            context.transport.send(send.target, step, send.tag, pieces)
        except Exception as error:
            failure = context.error(position, error)
            context.transport.mailbox.cancel(failure)  # what is lost here may be what the next RECV waits for
            raise failure from error

    def action() -> None:
        arrays = [context.buffers[buffer] for buffer in send.buffers]
        context.sender.submit(send.buffers, partial(deliver, arrays, context.step))

    return action


def recv_action(context: Context, position: int, recv: Recv) -> Action:
    routes = [context.routes[route] for route in recv.routes]
    targets = [RouteTarget(route, context.program.mesh) for route in routes]
    ends = [0, *accumulate(len(route.pieces) for route in routes)]

    def action() -> None:
        payload = context.transport.mailbox.take(context.step, recv.tag)
        pieces = decode(payload, targets) if isinstance(payload, bytearray) else payload
        for number, (buffer, target) in enumerate(zip(recv.buffers, targets, strict=True)):
            _keep(context, buffer, target, target.land(pieces[ends[number] : ends[number + 1]]))

    return action


def reshard_action(context: Context, position: int, reshard: Reshard) -> Action:
    route = context.routes[reshard.route]
    source, target = RouteSource(route), RouteTarget(route, context.program.mesh)

    def action() -> None:
        pieces = source.cut(context.devices.shards(context.buffers[reshard.input]))
        _keep(context, reshard.output, target, target.land(pieces))

    return action


def complete_action(context: Context, position: int, completion: Allgather | Broadcast) -> Action:
    target = RouteTarget(context.routes[completion.route], context.program.mesh)
    spec = context.program.buffers[completion.buffer]

    def action() -> None:
        landed: Any = context.buffers[completion.buffer]
        target.exchange(landed)
        context.buffers[completion.buffer] = context.devices.put(spec, landed)

    return action


def _keep(context: Context, buffer: int, target: RouteTarget, landed: list[np.ndarray]) -> None:
    """What needs no completion goes to the devices at once."""
    spec = context.program.buffers[buffer]
    context.buffers[buffer] = context.devices.put(spec, landed) if target.is_complete else landed
