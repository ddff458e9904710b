"""Messages of one array, by every transport, beside a plain loop that does no more than move the
same bytes.

Messages come through sockets in bursts that one small message asks for; the plain loop asks with
one byte, sends with `sendall` and receives into memory that is always the same. A burst of one is
how long a message takes, a longer one how many bytes come through. In memory, the plain way is one
copy to memory that exists."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np

from benchmarks.runtime.samples import Pair, in_turns
from shardopt.runtime.backends.local import LocalTransport
from shardopt.runtime.transports.buffers import BufferPool
from shardopt.runtime.transports.landing import Landing, ShardSlice
from shardopt.runtime.transports.mailbox import Mailbox
from shardopt.runtime.transports.sockets import Address, SocketTransport

SIZES = (1 << 10, 1 << 15, 1 << 20, 1 << 24, 1 << 27)
_ASK, _ANSWER = 0, 1  # tags; answers of a burst count on
MOST = 64  # messages of a burst


def turns_of(bytes: int) -> int:
    return 9 if bytes > 1 << 25 else 25 if bytes > 1 << 22 else 200


def whole(shape: tuple[int, ...], dtype: type, source: str) -> Landing:
    """One shard from one piece."""
    return Landing(
        ((shape, np.dtype(dtype)),),
        {source: [(ShardSlice(0, tuple(slice(0, size) for size in shape)),)]},
    )


def mailboxes(bytes: int) -> list[Pair]:
    """With one copy, because the sender will write to its array again, and with none."""
    receiver = Mailbox()
    receiver.expect(0, whole((bytes,), np.uint8, "a"))
    transport = LocalTransport("a", Mailbox(), {"b": receiver})
    source = BufferPool().take((bytes,), np.dtype(np.uint8))
    source[...] = 1
    target, steps = np.zeros(bytes, np.uint8), count()

    def message(keep: bool) -> None:
        step = next(steps)
        transport.send("b", step, 0, [source], keep=keep)
        receiver.take(step, 0)

    def plain() -> None:
        target[...] = source

    names = {"mailbox, one copy": False, "mailbox, handed over": True}
    return [
        in_turns(name, bytes, lambda keep=keep: message(keep), plain, turns_of(bytes))
        for name, keep in names.items()
    ]


def sockets(bytes: int, burst: int, *, unix: bool) -> Pair:
    """Seconds of one message of a burst of so many."""
    with _peer(bytes, unix) as (transport, connection):
        request, target, step = np.zeros(1, np.int32), np.zeros(bytes, np.uint8), 0

        def messages() -> None:
            nonlocal step
            request[0] = burst
            transport.send("peer", step, _ASK, [request])
            for number in range(burst):
                transport.mailbox.take(step, _ANSWER + number)
            step += 1

        def plain() -> None:
            connection.sendall(b"x")
            for _ in range(burst):
                view = memoryview(target)
                while view:
                    view = view[connection.recv_into(view) :]

        name = f"{'Unix socket' if unix else 'TCP'}{f', {burst} at once' if burst > 1 else ''}"
        pair = in_turns(name, bytes, messages, plain, turns_of(bytes * burst), parts=burst)
        request[0] = 0
        transport.send("peer", step, _ASK, [request])
        return pair


def burst_of(bytes: int) -> int:
    """Enough messages to count bytes, not waits."""
    return max(1, min(MOST, (1 << 26) // bytes))


@contextmanager
def _peer(bytes: int, unix: bool) -> Iterator[tuple[SocketTransport, socket.socket]]:
    """Another process that answers: to messages, and on a plain connection."""
    transport = SocketTransport(Mailbox(), "127.0.0.1", b"token", "here", unix=unix)
    for number in range(MOST):
        transport.mailbox.expect(_ANSWER + number, whole((bytes,), np.uint8, "peer"))
    with (
        socket.socket(socket.AF_UNIX)
        if unix
        else socket.create_server(("127.0.0.1", 0)) as listener
    ):
        if unix:
            listener.bind("")
            listener.listen()
        context = multiprocessing.get_context("spawn")
        near, far = context.Pipe()
        place = listener.getsockname()
        peer = context.Process(
            target=_answer, args=(far, place, transport.address, bytes, unix), daemon=True
        )
        peer.start()
        connection, _ = listener.accept()
        _tune(connection)
        transport.connect({"peer": Address(*near.recv())})
        with connection:
            yield transport, connection
        peer.join(20)
    transport.close()


def _answer(pipe: Any, place: Any, here: Address, bytes: int, unix: bool) -> None:
    connection = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
    connection.connect(place)
    _tune(connection)
    transport = SocketTransport(Mailbox(), "127.0.0.1", b"token", "peer", unix=unix)
    transport.mailbox.expect(_ASK, whole((1,), np.int32, "here"))
    transport.connect({"here": here})
    pipe.send(transport.address)
    source = np.ones(bytes, np.uint8)
    for step in count():  # messages and plain ones are asked for in turns
        (request,) = transport.mailbox.take(step, _ASK)
        if request is None or not request[0]:
            break
        for number in range(request[0]):
            transport.send("here", step, _ANSWER + number, [source])
        if connection.recv(1) == b"x":
            for _ in range(request[0]):
                connection.sendall(source.data)
    connection.close()
    transport.close()


def _tune(connection: socket.socket) -> None:
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
