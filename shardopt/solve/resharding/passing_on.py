"""How devices of the destination fill each other's tiles: all-gathers in rings, and chains.

A round is a phase of the plan; rounds are counted from 1, for 0 is what crosses meshes. In a round
each device sends to one other of its host at most, and to one of another host, and receives from
one other at most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from shardopt.solve.resharding.plan import Slice, TileSend

Round = tuple[int, TileSend]
Bundles = Sequence[Sequence[Slice]]  # the slices that each device starts with


def all_gather(
    hosts: Sequence[Sequence[int]], bundles: Mapping[int, Sequence[Slice]]
) -> Iterator[Round]:
    """Afterwards every device has the slices of all. `hosts` are the devices of each host that take
    part.

    Where hosts take part with equally many devices, the k-th of each first gather over the hosts,
    so that each slice goes through a NIC once for each further host; then the devices of a
    host gather what came. Otherwise one ring passes through all hosts."""
    # Rows of one device a host exist only where all hosts have equally many.
    if len({len(devices) for devices in hosts}) > 1:
        devices = [device for host in hosts for device in host]
        yield from _ring(devices, [bundles[device] for device in devices], 1)
        return
    rows = [*zip(*hosts, strict=True)]
    for row in rows:
        yield from _ring(row, [bundles[device] for device in row], 1)
    arrived = [tuple(slice_ for device in row for slice_ in bundles[device]) for row in rows]
    for host in hosts:
        yield from _ring(host, arrived, len(hosts))


def chain(hosts: Sequence[Sequence[int]], chunks: Sequence[Slice]) -> Iterator[Round]:
    """The very first device has all chunks. The first devices of the hosts pass them on from host
    to host, and along the devices of their own, on other links, at the same time; all pass on one
    chunk while they receive the next."""
    leaders = [devices[0] for devices in hosts]
    lines = [(0, leaders), *enumerate(hosts)]
    for first, devices in lines:
        for hop, (giver, taker) in enumerate(pairwise(devices), first):
            for number, chunk in enumerate(chunks):
                yield 1 + hop + number, TileSend.of(giver, taker, chunk)


def _ring(devices: Sequence[int], bundles: Bundles, first: int) -> Iterator[Round]:
    """In round k each device passes its successor what it got in the round before, at first its
    own."""
    count = len(devices)
    for distance in range(count - 1):
        for place, device in enumerate(devices):
            for slice_ in bundles[(place - distance) % count]:
                yield first + distance, TileSend.of(device, devices[(place + 1) % count], slice_)
