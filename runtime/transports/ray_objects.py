"""Messages as objects of Ray, for clusters whose workers cannot open sockets to each other.

Slower than sockets, for every message is copied into Ray's store and needs a call. What has arrived
in the store of the receiver's node is not copied again where it is a whole shard: the store keeps
it for as long as an array looks at it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from shardopt.runtime.errors import MessageLost, PeerGone
from shardopt.runtime.transports.mailbox import LinkStates, Mailbox
from shardopt.runtime.transports.sockets import Address

RECEIVE = "receive"  # concurrency group, and method, of the actors


class RayObjectTransport:
    """`actors` are the handles of all workers by name; each has a method `receive(source, number,
    step, tag, data)`."""

    def __init__(self, name: str, mailbox: Mailbox, actors: Mapping[str, Any]) -> None:
        self.mailbox = mailbox
        self._name = name
        self._actors = dict(actors)
        self._sent = dict.fromkeys(actors, 0)
        self._received: dict[str, int] = {}
        self._lock = threading.Lock()

    def connect(self, peers: Mapping[str, Address]) -> None:
        """Nothing to open: the handles are the connections."""

    def send(
        self, target: str, step: int, tag: int, pieces: Sequence[np.ndarray], *, keep: bool = False
    ) -> None:
        """Returns when the receiver has the message. One thread at a time for each target. Raises
        PeerGone."""
        import ray

        number, self._sent[target] = self._sent[target], self._sent[target] + 1
        receive = self._actors[target].receive.options(concurrency_group=RECEIVE)
        try:
            ray.get(receive.remote(self._name, number, step, tag, as_bytes(pieces)))
        except ray.exceptions.RayActorError as error:
            raise PeerGone(f"worker '{target}' is gone ({type(error).__name__})") from error

    def receive(
        self, source: str, number: int, step: int, tag: int, data: Sequence[np.ndarray]
    ) -> None:
        """Called in the process of the receiver. What is wrong with a message fails its worker, not
        the sender."""
        try:
            with self._lock:
                expected = self._received.get(source, 0)
                self._received[source] = number + 1
            if number != expected:
                raise MessageLost(
                    f"message {expected} from worker '{source}' was lost: found number {number} "
                    "instead"
                )
            self.mailbox.deliver(
                source, step, tag, self._pieces(source, step, tag, data), keep=True
            )
        except Exception as error:
            self.mailbox.cancel(error)

    def links(self) -> LinkStates:
        """`send` returns when the receiver has the message."""
        return LinkStates(frozenset(), frozenset(self._actors))

    def close(self) -> None:
        """Ray ends the actors."""

    def _pieces(
        self, source: str, step: int, tag: int, data: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Views of the bytes. Raises ValueError when their lengths are wrong."""
        types = self.mailbox.open(source, step, tag).landing.piece_types[source]
        expected = [prod(shape) * dtype.itemsize for shape, dtype in types]
        sizes = [each.nbytes for each in data]
        if expected != sizes:
            raise ValueError(
                f"message {tag} of worker '{source}': expected pieces of {expected} bytes, found "
                f"{sizes}"
            )
        return [
            each.view(dtype).reshape(shape)
            for each, (shape, dtype) in zip(data, types, strict=True)
        ]


def as_bytes(pieces: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Ray moves the memory of arrays as it is, if their types are numpy's own and they lie in one
    run."""
    return [np.ascontiguousarray(piece).reshape(-1).view(np.uint8) for piece in pieces]
