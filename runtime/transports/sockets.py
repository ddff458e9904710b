"""Messages between processes: one connection per ordered pair of workers, raw bytes behind a fixed
header.

Workers on one host meet at a Unix socket, which moves bytes twice as fast as TCP does; the address
says which of the two it can be. Both ends prove that they know the run's token before any data
flows: each answers the other's random challenge with an HMAC. The sender connects and says who it
is; the receiver has a thread per connection, which reads into the memory that will be the shards,
and fills the mailbox. Messages of a connection are numbered: one that is missing is noticed by the
next.

Strangers may reach a TCP port. They get a challenge, a few bytes of memory and one deadline for all
of their answer; so many of them at once and no more. Nothing that they send is allocated for, or
read as anything but those bytes. What the run's own workers send lands only in memory that is there
for it."""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import secrets
import socket
import struct
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import NamedTuple

import numpy as np

from shardopt.runtime.errors import MessageLost, PeerGone
from shardopt.runtime.transports.mailbox import LinkStates, Mailbox
from shardopt.runtime.transports.vectors import (
    ReadAhead,
    receive_arrays,
    receive_exactly,
    send_arrays,
)

_HEADER = struct.Struct("<QQQQ")  # number on this connection, step, tag, bytes that follow
_QUEUE = struct.Struct("i")  # bytes that are in one
_NAME = struct.Struct("<H")  # bytes of the sender's name
# As long as the answer, a SHA-256.
_CHALLENGE_BYTES = 32
_HANDSHAKE_TIMEOUT_SECONDS = 20.0
_MAX_NAME_BYTES = 256
_MAX_UNPROVED = 256  # connections at once that have not proved anything yet
_EVERYWHERE = ("", "0.0.0.0", "::")
# Each side signs with its own word, so that its answer cannot be played back by the other.
_SENDER, _RECEIVER = b"sender", b"receiver"
# The system's buffers between processes of one host: what they hold must still be in the cache when
# it is read. Those of connections between hosts grow by themselves with the link, unless somebody
# sets them.
_NEAR_BYTES = 1 << 18


class Address(NamedTuple):
    """Where a worker listens: TCP at `host` and `port`, and a Unix socket of the name `near` for
    those in the same network namespace ("" if there is none)."""

    host: str
    port: int
    near: str = ""


class SocketTransport:
    """The worker `name` listens on `host` (port chosen by the system) for those that send here, and
    connects to those that it sends to. A worker with `unix` off is met by TCP only."""

    def __init__(
        self, mailbox: Mailbox, host: str, token: bytes, name: str = "", *, unix: bool = True
    ) -> None:
        self.mailbox = mailbox
        self._token = token
        self._name = name.encode()
        self._peers: dict[str, _Outgoing] = {}
        self._sources: dict[str, _Incoming] = {}
        self._accepted: set[socket.socket] = set()
        self._unproved = threading.Semaphore(_MAX_UNPROVED)
        self._closed = False
        if host in _EVERYWHERE:
            raise ValueError(
                "expected the address of one of the cluster's networks to listen on, found "
                f"'{host}'"
            )
        listener = socket.create_server((host, 0))
        name_near, near = _listen_near() if unix else ("", None)
        self._listeners = [each for each in (listener, near) if each is not None]
        self.address = Address(host, listener.getsockname()[1], name_near)
        for each in self._listeners:
            threading.Thread(target=self._accept, args=(each,), name="accept", daemon=True).start()

    def connect(self, peers: Mapping[str, Address]) -> None:
        """Connect to every worker this one sends to. Raises OSError, PermissionError on a foreign
        listener."""
        for name, address in peers.items():
            connection = self._reach(Address(*address))
            challenge = receive_exactly(connection, _CHALLENGE_BYTES)
            own_challenge = secrets.token_bytes(_CHALLENGE_BYTES)
            who = _NAME.pack(len(self._name)) + self._name
            # The name is part of what is proved: nobody on the way can change it.
            connection.sendall(who + self._answer(_SENDER, challenge + self._name) + own_challenge)
            if not hmac.compare_digest(
                receive_exactly(connection, _CHALLENGE_BYTES),
                self._answer(_RECEIVER, own_challenge),
            ):
                connection.close()
                raise PermissionError(
                    f"the listener for mesh '{name}' does not know this run's token"
                )
            connection.settimeout(None)
            self._peers[name] = _Outgoing(connection)

    def send(
        self, target: str, step: int, tag: int, pieces: Sequence[np.ndarray], *, keep: bool = False
    ) -> None:
        """Write the message; returns when the system has taken all of it. One thread at a time for
        each target."""
        peer = self._peers[target]
        header = _HEADER.pack(peer.sent, step, tag, sum(piece.nbytes for piece in pieces))
        peer.sent += 1
        try:
            send_arrays(peer.socket, header, pieces)
        except OSError as error:
            raise PeerGone(
                f"the connection to worker '{target}' is broken ({error.strerror})"
            ) from error

    def links(self) -> LinkStates:
        return LinkStates(
            frozenset(name for name, peer in self._peers.items() if _unsent(peer.socket)),
            frozenset(
                name
                for name, each in self._sources.copy().items()
                if each.is_between and not _unread(each.socket)
            ),
            sum(each.bytes for each in self._sources.copy().values()),
        )

    def cut(self) -> None:
        """Break the connection to the first of the workers that this one sends to."""
        for peer in self._peers.values():
            peer.socket.shutdown(socket.SHUT_RDWR)
            return

    def close(self) -> None:
        self._closed = True
        for connection in (
            *self._listeners,
            *(peer.socket for peer in self._peers.values()),
            *self._accepted,
        ):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that is blocked on it
            connection.close()

    def _reach(self, address: Address) -> socket.socket:
        """A connection to the Unix socket if the peer has the host's own address, by TCP
        otherwise."""
        if address.host == self.address.host and address.near and self.address.near:
            near = socket.socket(socket.AF_UNIX)
            near.settimeout(_HANDSHAKE_TIMEOUT_SECONDS)
            _tune(near)
            try:
                near.connect(f"\0{address.near}")
                return near
            except OSError:  # one address, two namespaces: behind a translation of addresses
                near.close()
        connection = socket.create_connection(
            (address.host, address.port), timeout=_HANDSHAKE_TIMEOUT_SECONDS
        )
        _tune(connection)
        return connection

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            if not self._unproved.acquire(blocking=False):
                connection.close()
                continue
            self._accepted.add(connection)
            threading.Thread(
                target=self._serve, args=(connection,), name="receive", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        """Check the peer, then turn its bytes into messages until it closes."""
        source = None
        try:
            try:
                source = self._admit(connection)
            finally:
                # Admitted or refused: it counts as a stranger no longer.
                self._unproved.release()
            number = 0
            if source is not None:
                incoming = self._sources[source] = _Incoming(connection)
                while True:
                    self._receive(incoming, source, number)
                    number += 1
        except Exception as error:
            # Strangers harm nobody but themselves; what a worker of the run does wrong ends the
            # run.
            if source is not None and not self._closed:
                gone = PeerGone(f"the connection from worker '{source}' was closed")
                self.mailbox.cancel(gone if isinstance(error, EOFError | OSError) else error)
        finally:
            self._accepted.discard(connection)
            connection.close()

    def _receive(self, incoming: _Incoming, source: str, expected: int) -> None:
        number, step, tag, size = _HEADER.unpack(incoming.header())
        if number != expected:
            lost = f"message {expected} from worker '{source}' was lost"
            raise MessageLost(f"{lost}: found number {number} (tag {tag}, step {step}) instead")
        arrival = self.mailbox.open(source, step, tag)
        windows = arrival.windows(source)
        size_expected = sum(window.nbytes for window in windows)
        # Before anything is read, as what follows would be taken for the next header.
        if size_expected != size:
            raise ValueError(
                f"message {tag} of worker '{source}': expected {size_expected} bytes, found {size}"
            )
        if incoming.ahead.fill(windows, size):
            incoming.count(size)
        elif arrival.landing.streams:
            for window in windows:
                receive_arrays(incoming.ahead, [window], incoming.count)
                self.mailbox.landed(source, step, tag)
        else:
            receive_arrays(incoming.ahead, windows, incoming.count)
        self.mailbox.close(source, step, tag)

    def _admit(self, connection: socket.socket) -> str | None:
        """The name of a peer that knows the token, None for any other."""
        _tune(connection)
        deadline = monotonic() + _HANDSHAKE_TIMEOUT_SECONDS
        connection.settimeout(_HANDSHAKE_TIMEOUT_SECONDS)
        challenge = secrets.token_bytes(_CHALLENGE_BYTES)
        connection.sendall(challenge)
        try:
            (size,) = _NAME.unpack(_receive_by(deadline, connection, _NAME.size))
            if size > _MAX_NAME_BYTES:
                return None
            name = _receive_by(deadline, connection, size)
            answer = _receive_by(deadline, connection, _CHALLENGE_BYTES)
            peer_challenge = _receive_by(deadline, connection, _CHALLENGE_BYTES)
        except TimeoutError:
            return None
        if not hmac.compare_digest(answer, self._answer(_SENDER, challenge + name)):
            return None
        connection.sendall(self._answer(_RECEIVER, peer_challenge))
        connection.settimeout(None)
        return name.decode()

    def _answer(self, input_kind: bytes, challenge: bytes) -> bytes:
        return hmac.digest(self._token, input_kind + challenge, "sha256")


def _receive_by(deadline: float, connection: socket.socket, size: int) -> bytes:
    """Raises TimeoutError when the last byte has not come by then, however fast the others did;
    EOFError."""
    data = b""
    while len(data) < size:
        connection.settimeout(max(deadline - monotonic(), 1e-3))
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("the peer closed the connection")
        data += part
    return data


class _Outgoing:
    """What this worker sends to one other."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.sent = 0  # messages


class _Incoming:
    """What one other worker sends to this one. Only its own thread writes here."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.ahead = ReadAhead(connection)
        self.is_between = False  # messages: it waits for the first byte of the next
        self.bytes = 0  # of arrays

    def header(self) -> memoryview:
        """Of the next message."""
        self.is_between = self.ahead.is_empty
        header = self.ahead.take(_HEADER.size)
        self.is_between = False
        return header

    def count(self, size: int) -> None:
        self.bytes += size


def _unsent(connection: socket.socket) -> int:
    """Bytes that the system has taken and the peer's has not acknowledged; to a process of this
    host, those that it has not read."""
    return _asked(connection, termios.TIOCOUTQ)


def _unread(connection: socket.socket) -> int:
    """Bytes that have come and that nobody has read."""
    return _asked(connection, termios.FIONREAD)


def _asked(connection: socket.socket, request: int) -> int:
    """Of a connection that is closed, or a system that does not say: 1, as who cannot be asked is
    not known to be at rest."""
    try:
        (size,) = _QUEUE.unpack(fcntl.ioctl(connection.fileno(), request, _QUEUE.pack(0)))
    except (OSError, ValueError):
        return 1
    return int(size)


def _listen_near() -> tuple[str, socket.socket | None]:
    """A Unix socket and its name, without a file that would outlive a killed process; nothing where
    none can be."""
    if not sys.platform.startswith("linux"):
        return "", None
    name = f"shardopt-{secrets.token_hex(16)}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    listener.listen()
    return name, listener


def _tune(connection: socket.socket) -> None:
    if connection.family != socket.AF_UNIX:
        # A small message must not wait for more bytes to travel with.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if (
        connection.family == socket.AF_UNIX
        or connection.getsockname()[0] == connection.getpeername()[0]
    ):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _NEAR_BYTES)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _NEAR_BYTES)
