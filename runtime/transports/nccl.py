"""Pieces from GPU to GPU by NCCL, through cupy: no copy on the host, and no wait of the host.

Every pair of a sending and a receiving GPU has a communicator of its own for each direction, with a
stream of its own at each end: an operation of NCCL waits for its counterpart, and must not keep
others from theirs. Both ends make their communicators in one order for the whole run, so that
nobody waits for one who waits for him, and both know from the program which pieces a message has,
so that operations meet in pairs. All pieces of a message are one group.

The unique id of a communicator is made by its sender, who tells it by the ordinary transport. When
a run fails, all communicators are aborted; whatever waits for them then ends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from shardopt.runtime.devices.cuda import Cuda, Stream, Words
from shardopt.runtime.transports.landing import Landing, ShardSlice
from shardopt.runtime.transports.mailbox import Transport

# NCCL_UNIQUE_ID_BYTES of nccl.h.
_ID_BYTES = 128
_ID_TAG = 1 << 62  # no message of a program has such a tag
_SENDER, _RECEIVER = 0, 1  # ranks
_PATIENCE_SECONDS = 1e-3  # between two looks at what has failed


class End(NamedTuple):
    """A device: shard `shard` of a mesh, which is in the process of `worker`."""

    mesh: str
    shard: int
    worker: str


class NcclLink(NamedTuple):
    """From one device to another; links are made in their order."""

    source: End
    target: End

    @property
    def tag(self) -> int:
        """Of the message with the unique id."""
        # A hash, so that both ends know the tag without a message. Its 56 bits leave `_ID_TAG`
        # alone.
        return _ID_TAG | int.from_bytes(sha256(repr(self).encode()).digest()[:7], "big")


@dataclass
class _Channel:
    """One end of a link."""

    cuda: Cuda
    comm: Any
    peer: int
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
    """The links of one worker. `cudas` are its GPUs, by shard of its mesh; `name` is the
    worker's."""

    def __init__(
        self,
        nccl: Any,
        name: str,
        cudas: Mapping[int, Cuda],
        links: Iterable[NcclLink],
        transport: Transport,
    ) -> None:
        self._nccl, self._name, self._cudas, self._transport = nccl, name, cudas, transport
        self._links = sorted(set(links))
        self._channels: dict[NcclLink, _Channel] = {}
        self._under_way: deque[Reading] = deque()
        self._copies: dict[int, Stream] = {}
        self._is_open = False
        self._failed = False
        for link in self._links:
            if link.target.worker == name:
                place = (ShardSlice(0, (slice(0, _ID_BYTES),)),)
                landing = Landing(
                    (((_ID_BYTES,), np.dtype(np.uint8)),), {link.source.worker: [place]}
                )
                transport.mailbox.expect(link.tag, landing)
        transport.mailbox.on_cancel(self.abort)

    def open(self) -> None:
        """Make all communicators, once: the other workers do so at the same time. Raises what
        cancels the run."""
        if self._is_open:
            return
        ids = {}
        # All ids are told before a communicator is made, which waits for its other end.
        for link in self._links:
            if link.source.worker == self._name:
                ids[link] = self._nccl.get_unique_id()
                # cupy gives the bytes of an id as numbers from -128 on.
                data = np.array(ids[link], np.int64).astype(np.int8).view(np.uint8)
                self._transport.send(link.target.worker, 0, link.tag, [data])
        for link in self._links:
            if link.source.worker == self._name:
                self._open(link, link.source.shard, ids[link], _SENDER)
            else:
                (id_bytes,) = self._transport.mailbox.take(0, link.tag)
                assert id_bytes is not None, "the id is one piece"
                self._open(
                    link, link.target.shard, tuple(id_bytes.view(np.int8).tolist()), _RECEIVER
                )
        self._is_open = True

    def _open(self, link: NcclLink, shard: int, unique: tuple[int, ...], rank: int) -> None:
        cuda = self._cudas[shard]
        with cuda.here():
            comm = self._nccl.NcclCommunicator(2, unique, rank)
        self._channels[link] = _Channel(cuda, comm, 1 - rank, cuda.stream())

    def send(self, parts: Sequence[tuple[NcclLink, Any, Any]]) -> Reading:
        """(link, shard of XLA, slices of it) for every piece of a message, in order."""
        channels = [self._channels[link] for link, _, _ in parts]
        shards = [
            channel.cuda.view(shard, channel.stream)
            for channel, (_, shard, _) in zip(channels, parts, strict=True)
        ]
        tiles = [
            channel.cuda.compact(shard[slices], channel.stream)
            for channel, shard, (_, _, slices) in zip(channels, shards, parts, strict=True)
        ]
        self._grouped(channels, tiles, "send")
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
        channels = [self._channels[link] for link, _ in parts]
        whole = [
            window if window.flags.c_contiguous else channel.cuda.empty_like(window, channel.stream)
            for channel, (_, window) in zip(channels, parts, strict=True)
        ]
        self._grouped(channels, whole, "recv")
        for channel, (_, window), words in zip(channels, parts, whole, strict=True):
            if words is not window:
                channel.cuda.write(window, words, channel.stream)
        events = {id(channel): channel.cuda.event(channel.stream) for channel in channels}
        return [
            (channel.cuda, words, events[id(channel)])
            for channel, words in zip(channels, whole, strict=True)
        ]

    def _grouped(
        self, channels: Sequence[_Channel], tiles: Sequence[Words], operation: str
    ) -> None:
        self.check()
        nccl = self._nccl
        nccl.groupStart()
        try:
            for channel, tile in zip(channels, tiles, strict=True):
                with channel.cuda.here():
                    call: Callable[..., None] = getattr(channel.comm, operation)
                    call(
                        tile.data.ptr,
                        tile.nbytes,
                        nccl.NCCL_UINT8,
                        channel.peer,
                        channel.stream.ptr,
                    )
        finally:
            # After an error, too: a group that stays open would take in whatever comes next.
            nccl.groupEnd()

    def _events(self, channels: Sequence[_Channel]) -> list[Any]:
        unique = {id(channel): channel for channel in channels}
        return [channel.cuda.event(channel.stream) for channel in unique.values()]

    def check(self) -> None:
        """Raises what cancelled the run, or the error of a communicator."""
        self._transport.mailbox.check()
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
        self._failed = True
        for channel in self._channels.values():
            channel.comm.abort()

    def close(self) -> None:
        """After a failure nothing is left to end."""
        if not self._failed:
            self.drain()
            for channel in self._channels.values():
                channel.comm.destroy()
        self._channels = {}
