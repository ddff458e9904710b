"""The strategies: which slices cross to which device of the destination, and what is passed on
there.

A strategy makes *drafts*. A draft says what each device fetches from the source mesh, not yet from
whom, and what the destination devices then pass on. Devices that hold their whole tile already copy
it and take no further part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from shardopt.hardware.cluster import Cluster
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.solve.resharding.passing_on import Round, all_gather, chain
from shardopt.solve.resharding.plan import Slice
from shardopt.solve.resharding.senders import Fetch
from shardopt.solve.resharding.slices import TileGrid, cut, volume

# Rows that may follow the first phase of a plan: it stands in the IR, and a row takes about a
# microsecond to carry out. Where there would be more, pieces get larger.
_MOST_ROWS = 1 << 16
# Chunks of a chain: the time beyond that of its slowest link falls as 1 / chunks, so that many rows
# gain little.
_CHUNKS = (1, 2, 4, 8, 16)
_MOST_CHUNKS = 1 << 13

_T = TypeVar("_T")
_Hosts = tuple[tuple[int, ...], ...]  # the devices of each host


@dataclass(frozen=True)
class Resharding:
    """A tensor on its way: `itemsize` is bytes per element. The meshes may share devices, or be the
    same."""

    shape: tuple[int, ...]
    itemsize: int
    source: tuple[Mesh, Sharding]
    destination: tuple[Mesh, Sharding]


class Draft(NamedTuple):
    """What destination devices fetch, and what they pass on: (phase, send)."""

    fetches: tuple[Fetch, ...]
    rounds: tuple[Round, ...] = ()


class _Tile(NamedTuple):
    """A destination tile and the devices that must get it."""

    slice: Slice
    hosts: _Hosts

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(device for host in self.hosts for device in host)


class Drafting:
    """The drafts of one resharding."""

    def __init__(self, cluster: Cluster, resharding: Resharding) -> None:
        self._cluster, self._itemsize = cluster, resharding.itemsize
        self._source = TileGrid.of(*resharding.source, resharding.shape)
        target = TileGrid.of(*resharding.destination, resharding.shape)
        self._copies: list[Fetch] = []
        self._tiles: list[_Tile] = []
        for number, replicas in target.holders.items():
            slice_ = target.tile(number)
            first, *others = self._source.overlaps(slice_)
            held = frozenset(() if others else first[1])
            self._copies += [
                self._fetch(slice_, device, first[1]) for device in replicas if device in held
            ]
            hosts = self._by_host([device for device in replicas if device not in held])
            if hosts:
                self._tiles.append(_Tile(slice_, hosts))

    @property
    def has_replicas(self) -> bool:
        """Whether a tile must get to several devices."""
        return any(len(tile.devices) > 1 for tile in self._tiles)

    def send_recv(self) -> Iterator[Draft]:
        """Every device gets its whole tile from the source mesh."""
        targets = ((tile.slice, device) for tile in self._tiles for device in tile.devices)
        yield self._draft(
            [fetch for slice_, device in targets for fetch in self._fill(slice_, device)]
        )

    def local_allgather(self) -> Iterator[Draft]:
        """The replicas of a tile share the work: each fetches a piece, then they gather."""
        for tiles in self._scopes():
            fetches: list[Fetch] = []
            rounds: list[Round] = []
            for tile in tiles:
                pieces = self._pieces(tile, _MOST_ROWS // len(tiles))
                fetches += [
                    f
                    for device, slices in pieces.items()
                    for slice_ in slices
                    for f in self._fill(slice_, device)
                ]
                rounds += all_gather(tile.hosts, pieces)
            yield self._draft(fetches, rounds)

    def broadcast(self) -> Iterator[Draft]:
        """Each overlap of two tiles crosses once, to the first device of a chain through the hosts,
        of which each has one through its devices."""
        for tiles in self._scopes():
            fetches: list[Fetch] = []
            chains: list[tuple[tuple[int, ...], Slice]] = []
            for tile in tiles:
                for turn, (slice_, holders) in enumerate(self._source.overlaps(tile.slice)):
                    holding = [device for device in tile.devices if device in holders]
                    order = self._chain_order(tile.hosts, holders, turn)
                    fetches += [
                        self._fetch(slice_, device, holders) for device in holding or order[:1]
                    ]
                    chains.append(((*holding[:1], *order) if holding else order, slice_))
            hops = sum(len(devices) - 1 for devices, _ in chains)
            for chunks in _CHUNKS if hops else (1,):
                if chunks == 1 or chunks * hops <= _MOST_CHUNKS:
                    rounds = [
                        each
                        for devices, slice_ in chains
                        for each in chain(self._by_host(devices), cut(slice_, chunks))
                    ]
                    yield self._draft(fetches, rounds)

    def _scopes(self) -> Iterator[list[_Tile]]:
        """All replicas of a tile together, so that it crosses once; and, where hosts have several,
        those of each host alone, so that nothing goes from one host of the destination to
        another."""
        yield self._tiles
        if any(1 < len(tile.hosts) < len(tile.devices) for tile in self._tiles):
            yield [_Tile(tile.slice, (host,)) for tile in self._tiles for host in tile.hosts]

    def _pieces(self, tile: _Tile, most_rows: int) -> dict[int, list[Slice]]:
        """The finer tiles, by the device that fetches each: along the tiles of the source where
        their number divides that of the replicas, so that a device fetches from one tile, and if it
        can from itself."""
        devices = tile.devices
        count = max(1, min(len(devices), most_rows // len(devices)))
        overlaps = [*self._source.overlaps(tile.slice)]
        parts = [(tile.slice, frozenset[int]())]
        # Then no piece spans two tiles of the source.
        if count % len(overlaps) == 0:
            parts = [(slice_, frozenset(holders)) for slice_, holders in overlaps]
        pieces = [
            (piece, holders)
            for slice_, holders in parts
            for piece in cut(slice_, count // len(parts))
        ]
        fetched: dict[int, list[Slice]] = {device: [] for device in devices}
        places = [devices[number * len(devices) // len(pieces)] for number in range(len(pieces))]
        left = []
        for place, (piece, holders) in zip(places, pieces, strict=True):
            holding = [
                device for device in (place, *devices) if device in holders and not fetched[device]
            ]
            if holding:
                fetched[holding[0]].append(piece)
            else:
                left.append((place, piece))
        for place, piece in left:
            free = next(device for device in (place, *devices) if not fetched[device])
            fetched[free].append(piece)
        return fetched

    def _chain_order(self, hosts: _Hosts, holders: Sequence[int], turn: int) -> tuple[int, ...]:
        """The devices without the slice: hosts that hold it first, else hosts in turn, and devices
        in turn."""
        near = {self._cluster.host_of(device) for device in holders}
        turned = _turned(hosts, turn)
        turned = tuple(
            sorted(turned, key=lambda devices: self._cluster.host_of(devices[0]) not in near)
        )
        inside = (_turned(devices, turn // len(hosts)) for devices in turned)
        return tuple(device for devices in inside for device in devices if device not in holders)

    def _fill(self, slice_: Slice, device: int) -> Iterator[Fetch]:
        """What a device fetches to have a slice: the part of each source tile from its holders."""
        return (
            self._fetch(part, device, holders) for part, holders in self._source.overlaps(slice_)
        )

    def _fetch(self, slice_: Slice, device: int, holders: tuple[int, ...]) -> Fetch:
        return Fetch(slice_, volume(slice_) * self._itemsize, device, holders)

    def _draft(self, fetches: Sequence[Fetch], rounds: Sequence[Round] = ()) -> Draft:
        return Draft((*self._copies, *fetches), tuple(rounds))

    def _by_host(self, devices: Sequence[int]) -> _Hosts:
        groups: dict[int, list[int]] = {}
        for device in devices:
            groups.setdefault(self._cluster.host_of(device), []).append(device)
        return tuple(map(tuple, groups.values()))


def _turned(items: tuple[_T, ...], by: int) -> tuple[_T, ...]:
    by %= max(len(items), 1)
    return items[by:] + items[:by]
