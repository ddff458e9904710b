"""SEND, RECV and RESHARD: the pieces of a route leave the shards of one sharding and become those of another."""

from __future__ import annotations

from functools import partial

from shardopt.runtime.actions.context import Action, Context
from shardopt.runtime.devices.tiles import RouteSource, RouteTarget
from shardopt.runtime.devices.xla import DeviceArray
from shardopt.runtime.program.instructions import Recv, Reshard, Send


def send_action(context: Context, position: int, send: Send) -> Action:
    source = RouteSource(context.routes[send.route])

    def deliver(array: DeviceArray, step: int) -> None:
        try:
            pieces = source.cut(context.devices.shards(array))
            if context.copy_pieces:
                pieces = [piece.copy() for piece in pieces]
            context.transport.send(send.target, step, send.tag, pieces)
        except Exception as error:
            failure = context.error(position, error)
            context.transport.mailbox.cancel(failure)  # what is lost here may be what the next RECV waits for
            raise failure from error

    def action() -> None:
        context.sender.submit(send.buffer, partial(deliver, context.buffers[send.buffer], context.step))

    return action


def recv_action(context: Context, position: int, recv: Recv) -> Action:
    target = RouteTarget(context.routes[recv.route], context.program.mesh)
    spec = context.program.buffers[recv.buffer]

    def action() -> None:
        payload = context.transport.mailbox.take(context.step, recv.tag)
        pieces = target.decode(payload) if isinstance(payload, bytearray) else payload
        context.buffers[recv.buffer] = context.devices.put(spec, target.assemble(pieces))

    return action


def reshard_action(context: Context, position: int, reshard: Reshard) -> Action:
    route = context.routes[reshard.route]
    source, target = RouteSource(route), RouteTarget(route, context.program.mesh)
    spec = context.program.buffers[reshard.output]

    def action() -> None:
        pieces = source.cut(context.devices.shards(context.buffers[reshard.input]))
        context.buffers[reshard.output] = context.devices.put(spec, target.assemble(pieces))

    return action
