"""SEND, RECV and RESHARD: the pieces of a route leave the shards of one sharding and land in those
of another, which ALLGATHER and BROADCAST complete.

A mesh has one worker on each of its hosts; each of them sends what its own shards hold, to every
host that needs some of it, and lands what its own shards need. What has landed and is not complete
is kept as one host array for each shard; devices take it over once it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from shardopt.runtime.actions.context import Action, Context
from shardopt.runtime.devices.exchanges import (
    Exchanges,
    Streamed,
    parts_of_values,
    streamed_values,
)
from shardopt.runtime.devices.tiles import RouteSource, RouteTarget, landing_of
from shardopt.runtime.devices.xla import DeviceArray
from shardopt.runtime.program.host_routes import RouteParts
from shardopt.runtime.program.hosts import Host
from shardopt.runtime.program.instructions import Allgather, Broadcast, Recv, Reshard, Route, Send
from shardopt.runtime.transports.landing import Landing
from shardopt.runtime.transports.mailbox import Payload


class _Outgoing:
    """What this host sends to some hosts: a message to each that needs any of its pieces."""

    def __init__(
        self,
        context: Context,
        buffers: Sequence[int],
        routes: Sequence[Route],
        targets: Sequence[Host],
    ) -> None:
        self._context = context
        # What a later RUN writes over may not be held on to: XLA would copy it there, for fear of
        # who is looking.
        self._keep = not context.copy_pieces and context.overwritten.isdisjoint(buffers)
        hosts = context.hosts[targets[0].mesh] if targets else ()
        parts = [RouteParts(route, hosts) for route in routes]
        by_target = {
            target.name: [
                RouteSource(route, context.host, target, of_route)
                for route, of_route in zip(routes, parts, strict=True)
            ]
            for target in targets
        }
        self._sources = {
            name: sources
            for name, sources in by_target.items()
            if any(each.size for each in sources)
        }

    def __bool__(self) -> bool:
        return bool(self._sources)

    def submit(self, position: int, buffers: Sequence[int], tag: int) -> None:
        """Send what the buffers hold now, on the threads that do."""
        context = self._context
        arrays = [context.buffers[buffer] for buffer in buffers]
        for target, sources in self._sources.items():
            send = partial(self._send, target, sources, arrays, context.step, tag)
            _submit(context, position, target, buffers, send)

    def _send(
        self,
        target: str,
        sources: Sequence[RouteSource],
        arrays: Sequence[DeviceArray],
        step: int,
        tag: int,
    ) -> None:
        shards = [self._context.devices.shards(array) for array in arrays]
        if self._context.recorder is not None:
            self._context.recorder.ready()
        pieces = [
            piece
            for source, of_value in zip(sources, shards, strict=True)
            for piece in source.cut(of_value)
        ]
        if self._context.copy_pieces:
            pieces = [piece.copy() for piece in pieces]
        _give(self._context, target, step, tag, pieces, keep=self._keep)


class _Incoming:
    """What this host receives of some routes from some hosts, as one message."""

    def __init__(
        self, context: Context, routes: Sequence[Route], sources: Sequence[Host], tag: int
    ) -> None:
        self._context, self._tag = context, tag
        hosts = context.hosts[context.host.mesh]
        self.targets = [
            RouteTarget(route, context.program.mesh, context.host, RouteParts(route, hosts))
            for route in routes
        ]
        self.landing: Landing = landing_of(self.targets, sources)
        self._parts = parts_of_values(self.targets, sources)
        if self.landing.pieces:
            context.transport.mailbox.expect(tag, self.landing)

    def take(self) -> Payload:
        if not self.landing.pieces:  # all comes by exchange
            return [None] * len(self.landing.shards)
        context, mailbox = self._context, self._context.transport.mailbox
        with self._awaiting():
            return mailbox.take(context.step, self._tag)

    def begin(self) -> list[Streamed]:
        """Wait for the first part of all that streams, and for all of what does not."""
        mailbox, step = self._context.transport.mailbox, self._context.step
        values = streamed_values(mailbox, step, self._tag, self.targets, self._parts)
        ready = [
            value.has_begun if target.streams else value.has_all
            for value, target in zip(values, self.targets, strict=True)
        ]
        with self._awaiting():
            mailbox.until(lambda: all(is_there() for is_there in ready))
        return values

    @contextmanager
    def _awaiting(self) -> Iterator[None]:
        context = self._context
        context.awaits = self._tag
        yield
        context.awaits = None
        if context.recorder is not None:
            context.recorder.waited()

    def keep(self, buffers: Sequence[int]) -> None:
        """Wait, and put what needs no completion on the devices at once."""
        buffer_of, size = self._context.buffers, len(self._context.host.shards)
        landed: list[Any]
        if self.landing.streams:
            landed = self.begin()
        else:
            shards = self.take()
            landed = [shards[number * size : (number + 1) * size] for number in range(len(buffers))]
        for buffer, target, value in zip(buffers, self.targets, landed, strict=True):
            if not target.streams and isinstance(value, Streamed):
                value = value.shards.given()
            buffer_of[buffer] = self._put(buffer, target, value) if target.is_complete else value

    def _put(self, buffer: int, target: RouteTarget, landed: Payload) -> DeviceArray:
        context = self._context
        shards = target.all(landed, context.transport.mailbox.pool)
        return context.devices.put(context.program.buffers[buffer], shards)


def send_action(context: Context, position: int, send: Send) -> Action:
    routes = [context.routes[route] for route in send.routes]
    outgoing = _Outgoing(context, send.buffers, routes, context.hosts[send.target])
    return partial(outgoing.submit, position, send.buffers, send.tag) if outgoing else _nothing


def recv_action(context: Context, position: int, recv: Recv) -> Action:
    routes = [context.routes[route] for route in recv.routes]
    return partial(
        _Incoming(context, routes, context.hosts[recv.source], recv.tag).keep, recv.buffers
    )


def reshard_action(context: Context, position: int, reshard: Reshard) -> Action:
    """A message of the host to itself, and to the other hosts of the mesh."""
    route = context.routes[reshard.route]
    here = context.host
    hosts = context.hosts[context.host.mesh]
    others = _Outgoing(context, (reshard.input,), [route], [host for host in hosts if host != here])
    staying = RouteSource(route, here, here, RouteParts(route, hosts))
    keep = reshard.input not in context.overwritten
    incoming, mailbox = _Incoming(context, [route], hosts, reshard.tag), context.transport.mailbox

    def action() -> None:
        array = context.buffers[reshard.input]
        # The others first: their messages travel while this host copies what stays.
        others.submit(position, (reshard.input,), reshard.tag)
        if staying.size:
            pieces = staying.cut(context.devices.shards(array))
            mailbox.deliver(here.name, context.step, reshard.tag, pieces, keep=keep)
        incoming.keep((reshard.output,))

    return action


def complete_action(context: Context, position: int, completion: Allgather | Broadcast) -> Action:
    route = context.routes[completion.route]
    hosts = context.hosts[context.host.mesh]
    mailbox = context.transport.mailbox
    exchanges = Exchanges(route, context.program.mesh, hosts, context.host, completion.tag, mailbox)
    spec = context.program.buffers[completion.buffer]

    def give(worker: str, tag: int, pieces: list[np.ndarray]) -> None:
        # The receiver may keep none of it: these are views of shards that a device takes over.
        send = partial(_give, context, worker, context.step, tag, pieces, keep=False)
        _submit(context, position, worker, (completion.buffer,), send)

    def action() -> None:
        landed: Any = context.buffers[completion.buffer]
        shards = exchanges.complete(context.step, landed, give)
        if context.recorder is not None:
            context.recorder.waited()
        context.buffers[completion.buffer] = context.devices.put(spec, shards)

    return action


def _give(
    context: Context, target: str, step: int, tag: int, pieces: list[np.ndarray], *, keep: bool
) -> None:
    context.transport.send(target, step, tag, pieces, keep=keep)
    if context.recorder is not None:
        context.recorder.gave(pieces)


def _submit(
    context: Context, position: int, target: str, buffers: Sequence[int], send: Callable[[], None]
) -> None:
    """Send on the thread that does; a failure there is one of the instruction."""

    def deliver() -> None:
        recorder = context.recorder
        try:
            if recorder is None:
                return send()
            with recorder.transmitting(position, target):
                send()
        except Exception as error:
            failure = context.error(position, error)
            # What is lost here may be what the next RECV waits for.
            context.transport.mailbox.cancel(failure)
            raise failure from error

    context.sender.submit(target, buffers, deliver)


def _nothing() -> None:
    """This host has nothing that the other mesh needs."""
