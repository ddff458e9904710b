"""Messages between processes over TCP: one connection per ordered pair of meshes, raw bytes behind a fixed header.

Both ends prove that they know the run's token before any data flows: each answers the other's random challenge with an
HMAC. The sender connects; the receiver has a thread per connection that reads into new memory and fills the mailbox.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import struct
import threading
from collections.abc import Mapping, Sequence

import numpy as np

from shardopt.runtime.transports.mailbox import Mailbox

Address = tuple[str, int]

_HEADER = struct.Struct("<QQQ")  # step, tag, bytes that follow
_CHALLENGE_BYTES = 32
_HANDSHAKE_TIMEOUT_SECONDS = 20.0
_SENDER, _RECEIVER = b"sender", b"receiver"  # keep one side's answer from being played back by the other


class SocketTransport:
    """Listens on `host` (port chosen by the system) for the meshes that send here, and connects to those sent to."""

    def __init__(self, mailbox: Mailbox, host: str, token: bytes) -> None:
        self.mailbox = mailbox
        self._token = token
        self._peers: dict[str, socket.socket] = {}
        self._accepted: list[socket.socket] = []
        self._closed = False
        self._listener = socket.create_server((host, 0))
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    @property
    def address(self) -> Address:
        host, port = self._listener.getsockname()[:2]
        return host, port

    def connect(self, peers: Mapping[str, Address]) -> None:
        """Open a connection to every mesh this one sends to. Raises OSError, PermissionError on a foreign listener."""
        for name, address in peers.items():
            connection = socket.create_connection(address, timeout=_HANDSHAKE_TIMEOUT_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            challenge = _receive(connection, _CHALLENGE_BYTES)
            own = secrets.token_bytes(_CHALLENGE_BYTES)
            connection.sendall(self._answer(_SENDER, challenge) + own)
            if not hmac.compare_digest(_receive(connection, _CHALLENGE_BYTES), self._answer(_RECEIVER, own)):
                connection.close()
                raise PermissionError(f"the listener for mesh '{name}' does not know this run's token")
            connection.settimeout(None)
            self._peers[name] = connection

    def send(self, target: str, step: int, tag: int, pieces: Sequence[np.ndarray]) -> None:
        """Write the message; returns when the system has taken all of it. Used by one thread only."""
        flat = [np.ascontiguousarray(piece).reshape(-1).view(np.uint8) for piece in pieces]
        connection = self._peers[target]
        connection.sendall(_HEADER.pack(step, tag, sum(part.nbytes for part in flat)))
        for part in flat:
            connection.sendall(part.data)

    def close(self) -> None:
        self._closed = True
        for connection in (self._listener, *self._peers.values(), *self._accepted):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that is blocked on it
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            self._accepted.append(connection)
            threading.Thread(target=self._serve, args=(connection,), name="receive", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Check the peer, then turn its bytes into messages until it closes."""
        try:
            if not self._admit(connection):
                return
            while True:
                step, tag, size = _HEADER.unpack(_receive(connection, _HEADER.size))
                self.mailbox.put(step, tag, _receive(connection, size))
        except EOFError:
            return  # the peer closed between or inside messages: whoever waits for it is told by the driver
        except OSError as error:
            if not self._closed:
                self.mailbox.cancel(error)
        finally:
            connection.close()

    def _admit(self, connection: socket.socket) -> bool:
        connection.settimeout(_HANDSHAKE_TIMEOUT_SECONDS)
        challenge = secrets.token_bytes(_CHALLENGE_BYTES)
        connection.sendall(challenge)
        try:
            answer = _receive(connection, _CHALLENGE_BYTES)
            peer_challenge = _receive(connection, _CHALLENGE_BYTES)
        except TimeoutError:
            return False
        if not hmac.compare_digest(answer, self._answer(_SENDER, challenge)):
            return False
        connection.sendall(self._answer(_RECEIVER, peer_challenge))
        connection.settimeout(None)
        return True

    def _answer(self, role: bytes, challenge: bytes | bytearray) -> bytes:
        return hmac.digest(self._token, role + bytes(challenge), "sha256")


def _receive(connection: socket.socket, size: int) -> bytearray:
    """Exactly `size` bytes; raises EOFError when the peer closes first."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise EOFError("the peer closed the connection")
        view = view[count:]
    return data
