"""Pieces from GPU to GPU by NCCL, through cupy: no copy on the host, and no wait of the host.

Every pair of a sending and a receiving mesh has one communicator, whose ranks are the GPUs of both,
and each GPU one stream for it. All pieces of a message are one group, and messages of a pair come
in one order at all of its GPUs, which is that of the program (`runtime/program/sends.py`). So each
group ends when those before it have ended, and none waits for one behind it. The way back has a
communicator of its own: on one stream a GPU would wait for the other's send before it sends itself,
and the other likewise.

All communicators are made at the same time, on a thread each, so that it does not matter in which
order workers come to them. The unique id of one is made by the worker of its first GPU, who tells
it by the ordinary transport. When a run fails, all communicators are aborted; whatever waits for
them then ends."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from shardopt.runtime.devices.cuda import Cuda, Stream, Words
from shardopt.runtime.errors import PeerGone
from shardopt.runtime.transports.landing import Landing, ShardSlice
from shardopt.runtime.transports.mailbox import Transport

# NCCL_UNIQUE_ID_BYTES of nccl.h.
_ID_BYTES = 128
_ID_TAG = 1 << 62  # no message of a program has such a tag
_PATIENCE_SECONDS = 1e-3  # between two looks at what has failed

# ncclResult_t of nccl.h, and what it says to who runs a program.
_IN_PROGRESS = 7
_RESULTS = {
    1: "a call of CUDA failed: often an earlier fault on the GPU, or no memory beside XLA's share "
    "(XLA_PYTHON_CLIENT_MEM_FRACTION)",
    2: "a call of the system failed: sockets, shared memory or the driver of the network "
    "(NCCL_DEBUG=WARN says which)",
    3: "a fault inside of NCCL",
    4: "an argument that NCCL does not take",
    5: "calls of NCCL that do not fit each other",
    6: "a GPU at the other end, or the network to it, is gone",
}
_REMOTE = 6


class NcclFailure(RuntimeError):
    """An error of NCCL in our words."""


@contextmanager
def _in_our_words(nccl: Any) -> Iterator[None]:
    """Raises NcclFailure, or PeerGone for a fault at the other end, for what cupy raises of
    NCCL."""
    try:
        yield
    except nccl.NcclError as error:
        code: int = getattr(error, "status", 0)
        if code == _IN_PROGRESS:  # no error: what is asked has not ended
            return
        known = _RESULTS.get(code, "an error that this version of NCCL is the first to have")
        kind = PeerGone if code == _REMOTE else NcclFailure
        raise kind(f"NCCL: {known} (ncclResult_t {code}: {error})") from error


class End(NamedTuple):
    """A device: shard `shard` of a mesh, which is in the process of `worker`."""

    mesh: str
    shard: int
    worker: str


class NcclLink(NamedTuple):
    """From one device to another."""

    source: End
    target: End


class MeshPair(NamedTuple):
    """All devices of a sending mesh, and of a receiving one, in the order of their shards."""

    source: tuple[End, ...]
    target: tuple[End, ...]

    @property
    def ranks(self) -> tuple[End, ...]:
        return self.source + self.target

    @property
    def names(self) -> tuple[str, str]:
        return self.source[0].mesh, self.target[0].mesh

    @property
    def root(self) -> str:
        """The worker that makes the unique id."""
        return self.source[0].worker

    @property
    def tag(self) -> int:
        """Of the message with the unique id."""
        # A hash, so that all ends know the tag without a message. Its 56 bits leave `_ID_TAG`
        # alone.
        return _ID_TAG | int.from_bytes(sha256(repr(self.names).encode()).digest()[:7], "big")


@dataclass
class _Channel:
    """What a device of this worker does its part with in the communicator of a pair."""

    cuda: Cuda
    comm: Any
    stream: Stream


class Reading:
    """Memory that must live, and keep its contents, until streams have come past some events."""

    def __init__(self, links: NcclLinks, events: Sequence[Any], memory: Sequence[Words]) -> None:
        self._links, self._events = links, events
        self._memory: Sequence[Words] = memory

    @property
    def is_done(self) -> bool:
        """The memory is let go with it."""
        if not all(event.done for event in self._events):
            return False
        self._memory = ()
        return True

    def wait(self) -> None:
        """Raises what made the run, or NCCL, fail."""
        # By polling: a wait inside the driver would not end when the run is cancelled, or a peer is
        # gone.
        pause = 1e-5
        while not self.is_done:
            self._links.check()
            time.sleep(pause)
            pause = min(2 * pause, _PATIENCE_SECONDS)
        self._links.check()


class NcclLinks:
    """The communicators of one worker. `cudas` are its GPUs, by shard of its mesh; `name` is the
    worker's, and `pairs` are those that its mesh is one of."""

    def __init__(
        self,
        nccl: Any,
        name: str,
        cudas: Mapping[int, Cuda],
        pairs: Iterable[MeshPair],
        transport: Transport,
    ) -> None:
        self._nccl, self._name, self._cudas, self._transport = nccl, name, cudas, transport
        self._pairs = {pair.names: pair for pair in sorted(set(pairs))}
        self._ranks = {
            names: {end: rank for rank, end in enumerate(pair.ranks)}
            for names, pair in self._pairs.items()
        }
        self._channels: dict[tuple[tuple[str, str], End], _Channel] = {}
        self._under_way: deque[Reading] = deque()
        self._copies: dict[int, Stream] = {}
        self._is_open = False
        self._failed = False
        self._making = threading.Lock()
        for pair in self._pairs.values():
            if pair.root != name:
                place = (ShardSlice(0, (slice(0, _ID_BYTES),)),)
                landing = Landing((((_ID_BYTES,), np.dtype(np.uint8)),), {pair.root: [place]})
                transport.mailbox.expect(pair.tag, landing)
        transport.mailbox.on_cancel(self.abort)

    def open(self) -> None:
        """Make all communicators, once: the other workers do so at the same time. Raises what
        cancels the run, or NcclFailure."""
        if self._is_open:
            return
        ids = {
            names: self._told_id(pair)
            for names, pair in self._pairs.items()
            if pair.root == self._name
        }
        failures: list[BaseException] = []

        def make(pair: MeshPair) -> None:
            try:
                self._make(pair, ids.get(pair.names))
            except BaseException as error:
                failures.append(error)

        # Daemons: one that waits for a worker that is gone is left behind when the run is
        # cancelled, as NCCL cannot be told to stop before there is a communicator.
        threads = [
            threading.Thread(target=make, args=(pair,), name="nccl", daemon=True)
            for pair in self._pairs.values()
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) and not failures:
            self._transport.mailbox.check()
            time.sleep(_PATIENCE_SECONDS)
        if failures:
            raise failures[0]
        self._is_open = True

    def _told_id(self, pair: MeshPair) -> tuple[int, ...]:
        unique: tuple[int, ...] = self._nccl.get_unique_id()
        # cupy gives the bytes of an id as numbers from -128 on.
        data = np.array(unique, np.int64).astype(np.int8).view(np.uint8)
        for worker in dict.fromkeys(end.worker for end in pair.ranks if end.worker != self._name):
            self._transport.send(worker, 0, pair.tag, [data])
        return unique

    def _make(self, pair: MeshPair, unique: tuple[int, ...] | None) -> None:
        """A communicator for each device of this worker, as one group: each waits for all ranks."""
        if unique is None:
            (id_bytes,) = self._transport.mailbox.take(0, pair.tag)
            assert id_bytes is not None, "the id is one piece"
            unique = tuple(id_bytes.view(np.int8).tolist())
        made: dict[tuple[tuple[str, str], End], _Channel] = {}
        with _in_our_words(self._nccl):
            self._nccl.groupStart()
            try:
                for rank, end in enumerate(pair.ranks):
                    if end.worker == self._name:
                        cuda = self._cudas[end.shard]
                        with cuda.here():
                            comm = self._nccl.NcclCommunicator(len(pair.ranks), unique, rank)
                        made[pair.names, end] = _Channel(cuda, comm, cuda.stream())
            finally:
                self._nccl.groupEnd()
        with self._making:
            self._channels |= made
            if self._failed:
                self._abort(made.values())

    def _channel(self, link: NcclLink, end: End) -> _Channel:
        return self._channels[(link.source.mesh, link.target.mesh), end]

    def _rank(self, link: NcclLink, end: End) -> int:
        return self._ranks[link.source.mesh, link.target.mesh][end]

    def send(self, parts: Sequence[tuple[NcclLink, Any, Any]]) -> Reading:
        """(link, shard of XLA, slices of it) for every piece of a message, in order."""
        channels = [self._channel(link, link.source) for link, _, _ in parts]
        peers = [self._rank(link, link.target) for link, _, _ in parts]
        shards = [
            channel.cuda.view(shard, channel.stream)
            for channel, (_, shard, _) in zip(channels, parts, strict=True)
        ]
        tiles = [
            channel.cuda.compact(shard[slices], channel.stream)
            for channel, shard, (_, _, slices) in zip(channels, shards, parts, strict=True)
        ]
        self._grouped(channels, peers, tiles, "send")
        # Shards, too: kernels that copy have yet to run.
        return self.keep(self._events(channels), [*shards, *tiles])

    def keep(self, events: Sequence[Any], memory: Sequence[Words]) -> Reading:
        """Hold on to memory until the events have passed."""
        while self._under_way and self._under_way[0].is_done:
            self._under_way.popleft()
        reading = Reading(self, events, memory)
        self._under_way.append(reading)
        return reading

    def receive(self, parts: Sequence[tuple[NcclLink, Words]]) -> list[tuple[Cuda, Words, Any]]:
        """Fill the windows, each on the device of its link, in the order of the message. For every
        piece: its device, its contents in one run of memory, and the event after which they, and
        the window, are there."""
        channels = [self._channel(link, link.target) for link, _ in parts]
        peers = [self._rank(link, link.source) for link, _ in parts]
        whole = [
            window if window.flags.c_contiguous else channel.cuda.empty_like(window, channel.stream)
            for channel, (_, window) in zip(channels, parts, strict=True)
        ]
        self._grouped(channels, peers, whole, "recv")
        for channel, (_, window), words in zip(channels, parts, whole, strict=True):
            if words is not window:
                channel.cuda.write(window, words, channel.stream)
        events = {id(channel): channel.cuda.event(channel.stream) for channel in channels}
        return [
            (channel.cuda, words, events[id(channel)])
            for channel, words in zip(channels, whole, strict=True)
        ]

    def _grouped(
        self,
        channels: Sequence[_Channel],
        peers: Sequence[int],
        tiles: Sequence[Words],
        operation: str,
    ) -> None:
        self.check()
        nccl = self._nccl
        with _in_our_words(nccl):
            nccl.groupStart()
            try:
                for channel, peer, tile in zip(channels, peers, tiles, strict=True):
                    with channel.cuda.here():
                        call: Callable[..., None] = getattr(channel.comm, operation)
                        kind, stream = nccl.NCCL_UINT8, channel.stream.ptr
                        call(tile.data.ptr, tile.nbytes, kind, peer, stream)
            finally:
                # After an error, too: a group that stays open would take in whatever comes next.
                nccl.groupEnd()

    def _events(self, channels: Sequence[_Channel]) -> list[Any]:
        unique = {id(channel): channel for channel in channels}
        return [channel.cuda.event(channel.stream) for channel in unique.values()]

    def check(self) -> None:
        """Raises what cancelled the run, or NcclFailure for the error of a communicator."""
        self._transport.mailbox.check()
        with _in_our_words(self._nccl):
            for channel in self._channels.values():
                channel.comm.check_async_error()

    def copy_stream(self, cuda: Cuda) -> Stream:
        """For copies between GPUs of this worker."""
        if cuda.ordinal not in self._copies:
            self._copies[cuda.ordinal] = cuda.stream()
        return self._copies[cuda.ordinal]

    def drain(self) -> None:
        """Wait for all that is under way."""
        while self._under_way:
            self._under_way.popleft().wait()

    def abort(self) -> None:
        """End all that is under way, wherever it hangs; from any thread."""
        with self._making:
            self._failed = True
            self._abort(self._channels.values())

    def _abort(self, channels: Iterable[_Channel]) -> None:
        for channel in channels:
            channel.comm.abort()

    def close(self) -> None:
        """After a failure nothing is left to end."""
        if not self._failed:
            self.drain()
            for channel in self._channels.values():
                channel.comm.destroy()
        self._channels = {}
