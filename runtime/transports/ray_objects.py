"""Messages as objects of Ray, for clusters whose workers cannot open sockets to each other.

Slower than sockets, for every message is copied into Ray's store and out of it, and a message needs a call. The bytes
of all pieces are one object; the receiver's actor writes them into the shards, on a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardopt.runtime.errors import MessageLost, PeerGone
from shardopt.runtime.transports.mailbox import Mailbox
from shardopt.runtime.transports.sockets import Address

RECEIVE = "receive"  # concurrency group, and method, of the actors


class RayObjectTransport:
    """`actors` are the handles of all workers by name; each has a method `receive(source, number, step, tag, data)`."""

    def __init__(self, name: str, mailbox: Mailbox, actors: Mapping[str, Any]) -> None:
        self.mailbox = mailbox
        self._name = name
        self._actors = dict(actors)
        self._sent = dict.fromkeys(actors, 0)
        self._received: dict[str, int] = {}
        self._lock = threading.Lock()

    def connect(self, peers: Mapping[str, Address]) -> None:
        """Nothing to open: the handles are the connections."""

    def send(self, target: str, step: int, tag: int, pieces: Sequence[np.ndarray], *, keep: bool = False) -> None:
        """Returns when the receiver has the message. One thread at a time for each target. Raises PeerGone."""
        import ray

        number, self._sent[target] = self._sent[target], self._sent[target] + 1
        receive = self._actors[target].receive.options(concurrency_group=RECEIVE)
        try:
            ray.get(receive.remote(self._name, number, step, tag, packed(pieces)))
        except ray.exceptions.RayActorError as error:
            raise PeerGone(f"worker '{target}' is gone ({type(error).__name__})") from error

    def receive(self, source: str, number: int, step: int, tag: int, data: np.ndarray) -> None:
        """Called in the process of the receiver. What is wrong with a message fails its worker, not the sender."""
        try:
            with self._lock:
                expected = self._received.get(source, 0)
                self._received[source] = number + 1
            if number != expected:
                raise MessageLost(f"message {expected} from worker '{source}' was lost: found number {number} instead")
            arrival = self.mailbox.open(source, step, tag)
            unpack(data, arrival.windows(source))
            self.mailbox.close(source, step, tag)
        except Exception as error:
            self.mailbox.cancel(error)

    def close(self) -> None:
        """Ray ends the actors."""


def packed(pieces: Sequence[np.ndarray]) -> np.ndarray:
    """The bytes of all pieces, one after the other."""
    data, offset = np.empty(sum(piece.nbytes for piece in pieces), np.uint8), 0
    for piece in pieces:
        data[offset : offset + piece.nbytes].view(piece.dtype).reshape(piece.shape)[...] = piece
        offset += piece.nbytes
    return data


def unpack(data: np.ndarray, windows: Sequence[np.ndarray]) -> None:
    """Raises ValueError when the length is wrong."""
    wanted, offset = sum(window.nbytes for window in windows), 0
    if wanted != data.nbytes:
        raise ValueError(f"expected a message of {wanted} bytes, found {data.nbytes}")
    for window in windows:
        part = data[offset : offset + window.nbytes]
        window[...] = part.view(window.dtype).reshape(window.shape)
        offset += window.nbytes
