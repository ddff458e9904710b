"""SEND, RECV and RESHARD: the pieces of a route leave the shards of one sharding and land in those of another, which
ALLGATHER and BROADCAST complete.

What has landed and is not complete is kept as one host array for each shard; devices take it over once it is.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from shardopt.runtime.actions.context import Action, Context
from shardopt.runtime.devices.tiles import RouteSource, RouteTarget, landing_of
from shardopt.runtime.devices.xla import DeviceArray
from shardopt.runtime.program.instructions import Allgather, Broadcast, Recv, Reshard, Send
from shardopt.runtime.transports.landing import Arrival
from shardopt.runtime.transports.mailbox import Payload


def send_action(context: Context, position: int, send: Send) -> Action:
    sources = [RouteSource(context.routes[route]) for route in send.routes]
    # What a later RUN writes over may not be held on to: XLA would copy it there, for fear of who is looking.
    keep = not context.copy_pieces and context.overwritten.isdisjoint(send.buffers)

    def deliver(arrays: list[DeviceArray], step: int) -> None:
        try:
            pieces = [
                piece
                for source, array in zip(sources, arrays, strict=True)
                for piece in source.cut(context.devices.shards(array))
            ]
            if context.copy_pieces:
                pieces = [piece.copy() for piece in pieces]
            context.transport.send(send.target, step, send.tag, pieces, keep=keep)
        except Exception as error:
            failure = context.error(position, error)
            context.transport.mailbox.cancel(failure)  # what is lost here may be what the next RECV waits for
            raise failure from error

    def action() -> None:
        arrays = [context.buffers[buffer] for buffer in send.buffers]
        context.sender.submit(send.buffers, partial(deliver, arrays, context.step))

    return action


def recv_action(context: Context, position: int, recv: Recv) -> Action:
    targets = [RouteTarget(context.routes[route], context.program.mesh) for route in recv.routes]
    mailbox, size = context.transport.mailbox, context.program.mesh.size
    mailbox.expect(recv.tag, landing_of(targets, recv.source))

    def action() -> None:
        landed = mailbox.take(context.step, recv.tag)
        for number, (buffer, target) in enumerate(zip(recv.buffers, targets, strict=True)):
            _keep(context, buffer, target, landed[number * size : (number + 1) * size])

    return action


def reshard_action(context: Context, position: int, reshard: Reshard) -> Action:
    route, own, pool = context.routes[reshard.route], context.program.mesh.name, context.transport.mailbox.pool
    source, target = RouteSource(route), RouteTarget(route, context.program.mesh)
    landing, keep = landing_of([target], own), reshard.input not in context.overwritten

    def action() -> None:
        arrival = Arrival(landing, pool)
        arrival.adopt(own, source.cut(context.devices.shards(context.buffers[reshard.input])), keep=keep)
        landed = arrival.finish(own)
        assert landed is not None, "there is one source"
        _keep(context, reshard.output, target, landed)

    return action


def complete_action(context: Context, position: int, completion: Allgather | Broadcast) -> Action:
    target = RouteTarget(context.routes[completion.route], context.program.mesh)
    spec, pool = context.program.buffers[completion.buffer], context.transport.mailbox.pool

    def action() -> None:
        landed: Any = context.buffers[completion.buffer]
        context.buffers[completion.buffer] = context.devices.put(spec, target.exchange(landed, pool))

    return action


def _keep(context: Context, buffer: int, target: RouteTarget, landed: Payload) -> None:
    """What needs no completion goes to the devices at once."""
    if target.is_complete:
        shards = target.exchange(landed, context.transport.mailbox.pool)
        context.buffers[buffer] = context.devices.put(context.program.buffers[buffer], shards)
    else:
        context.buffers[buffer] = landed
