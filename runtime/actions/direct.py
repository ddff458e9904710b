"""SEND and RECV from GPU to GPU: pieces are cut out of the shards of one and placed in those of the
other without leaving the devices, and ALLGATHER and BROADCAST inside one host. Everything is only
started here; nothing waits.

A transfer that is completed by exchanges between the hosts of its destination goes over the
ordinary transport instead: both ends can tell so from its route."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from shardopt.runtime.actions.context import Action, Context
from shardopt.runtime.devices.cuda import Cuda, Words, load_cupy
from shardopt.runtime.devices.tiles import Tiling, python_slices
from shardopt.runtime.devices.xla import DeviceArray
from shardopt.runtime.program.host_routes import pieces_between
from shardopt.runtime.program.hosts import Host, Hosts
from shardopt.runtime.program.instructions import (
    Allgather,
    Broadcast,
    Instruction,
    MeshProgram,
    Recv,
    Route,
    Send,
)
from shardopt.runtime.transports.nccl import End, MeshPair, NcclLink, NcclLinks


def connect(context: Context) -> None:
    """Let the worker's GPUs exchange messages directly. Raises UserError where cupy or the driver
    is missing."""
    cupy, shards, in_flight = load_cupy(), context.host.shards, context.in_flight

    def last_run() -> Any:
        try:
            # Asked by whatever thread lets memory go: a test for emptiness could be outdated here.
            return in_flight[-1][1]
        except IndexError:  # all done
            return None

    context.cudas = {
        shard: Cuda(cupy, ordinal, last_run)
        for shard, ordinal in zip(shards, context.devices.ordinals(), strict=True)
    }
    pairs = pairs_of(context.program, context.hosts, context.routes)
    context.links = NcclLinks(
        cupy.cuda.nccl, context.host.name, context.cudas, pairs, context.transport
    )


def is_direct(context: Context, instruction: Instruction) -> bool:
    """Whether a message goes from GPU to GPU, or what such a message has brought is to be
    completed."""
    match instruction:
        case Send() | Recv():
            return context.links is not None and _stays(
                context.program, context.hosts, context.routes, instruction
            )
        case Allgather(buffer=buffer) | Broadcast(buffer=buffer):
            recvs = [
                each
                for each in context.program.instructions
                if isinstance(each, Recv) and buffer in each.buffers
            ]
            return any(is_direct(context, each) for each in recvs)
    return False


def _stays(
    program: MeshProgram, hosts: Hosts, routes: Sequence[Route], instruction: Send | Recv
) -> bool:
    """Whether all can be done on the GPUs."""
    target = instruction.target if isinstance(instruction, Send) else program.mesh.name
    return len(hosts[target]) == 1 or not any(
        routes[route].exchanges for route in instruction.routes
    )


def pairs_of(program: MeshProgram, hosts: Hosts, routes: Sequence[Route]) -> set[MeshPair]:
    """All pairs of meshes of which one is the program's: every host of a mesh finds the same."""
    pairs = set()
    for each in program.instructions:
        if isinstance(each, Send | Recv) and _stays(program, hosts, routes, each):
            meshes = (
                (program.mesh.name, each.target)
                if isinstance(each, Send)
                else (each.source, program.mesh.name)
            )
            pairs.add(MeshPair(*(_ends(hosts[mesh]) for mesh in meshes)))
    return pairs


def _ends(hosts: Sequence[Host]) -> tuple[End, ...]:
    return tuple(
        sorted(End(host.mesh, shard, host.name) for host in hosts for shard in host.shards)
    )


def _pieces(route: Route, source: Host, target: Host) -> list[tuple[int, NcclLink]]:
    """The pieces of a message, in order, and how each travels: to the first of its shards that is
    on the host."""
    first: dict[int, int] = {}
    for place in route.placements:
        if place.shard in target.shards:
            first.setdefault(place.piece, place.shard)
    return [
        (
            number,
            NcclLink(
                End(source.mesh, route.pieces[number].shard, source.name),
                End(target.mesh, first[number], target.name),
            ),
        )
        for number in pieces_between(route, source, target)
    ]


def direct_send_action(context: Context, position: int, send: Send) -> Action:
    messages: list[list[tuple[NcclLink, int, int, Any]]] = []
    for target in context.hosts[send.target]:
        message = []
        for value, route in enumerate(context.routes[number] for number in send.routes):
            for number, link in _pieces(route, context.host, target):
                piece = route.pieces[number]
                slices = (..., *python_slices(piece.slice))
                message.append((link, value, context.host.shards.index(piece.shard), slices))
        if message:
            messages.append(message)

    def action() -> None:
        links, devices = _open(context), context.devices
        shards = [devices.device_shards(context.buffers[buffer]) for buffer in send.buffers]
        for message in messages:
            parts = [(link, shards[value][shard], slices) for link, value, shard, slices in message]
            context.sender.track(send.buffers, links.send(parts))

    return action


@dataclass(frozen=True)
class _Arriving:
    """A piece on its way: by which link, and to which slices (number of the shard among all of the
    message, slices)."""

    link: NcclLink
    places: tuple[tuple[int, Any], ...]


@dataclass(frozen=True)
class _Landed:
    """The shards of a value that is still to be completed, and the events after which each holds
    what has come."""

    shards: list[Words]
    events: list[list[Any]]


def direct_recv_action(context: Context, position: int, recv: Recv) -> Action:
    routes = [context.routes[route] for route in recv.routes]
    tilings = [Tiling(context.program.mesh, route.target) for route in routes]
    sources, size = context.hosts[recv.source], len(context.host.shards)
    arriving = [
        each
        for source in sources
        for value, route in enumerate(routes)
        for each in _arriving(route, source, context.host, value * size)
    ]

    def action() -> None:
        links = _open(context)
        shards = [
            context.cudas[shard].take(tiling.local_shape, tiling.dtype)
            for tiling in tilings
            for shard in context.host.shards
        ]
        events = _land(context, links, arriving, shards)
        for value, (buffer, route, tiling) in enumerate(
            zip(recv.buffers, routes, tilings, strict=True)
        ):
            of_value = slice(value * size, (value + 1) * size)
            landed = _Landed(shards[of_value], events[of_value])
            context.buffers[buffer] = (
                landed if route.exchanges else _adopted(context, tiling, landed)
            )

    return action


def direct_complete_action(
    context: Context, position: int, completion: Allgather | Broadcast
) -> Action:
    route, shards = context.routes[completion.route], context.host.shards
    tiling = Tiling(context.program.mesh, route.target)
    moves = [
        (
            shards.index(move.source_shard),
            (..., *python_slices(move.source_slice)),
            shards.index(move.target_shard),
            (..., *python_slices(move.target_slice)),
        )
        for move in route.exchanges
    ]

    def action() -> None:
        links, landed = _open(context), context.buffers[completion.buffer]
        assert isinstance(landed, _Landed), "a direct RECV comes first"
        for source, source_index, target, target_index in moves:
            giver, taker = context.cudas[shards[source]], context.cudas[shards[target]]
            stream, source_window = links.copy_stream(giver), landed.shards[source][source_index]
            with giver.here():
                for event in landed.events[source]:
                    stream.wait_event(event)
            words = giver.compact(source_window, stream)
            target_window = landed.shards[target][target_index]
            landed.events[target].append(
                _pass_on(taker, links, words, giver.event(stream), target_window, source_window)
            )
        context.buffers[completion.buffer] = _adopted(context, tiling, landed)

    return action


def _adopted(context: Context, tiling: Tiling, landed: _Landed) -> DeviceArray:
    cudas = [context.cudas[shard] for shard in context.host.shards]
    give: list[Callable[[int | None], Any]] = [
        partial(cuda.give, words, tiling.dtype, tuple(events))
        for cuda, words, events in zip(cudas, landed.shards, landed.events, strict=True)
    ]
    return context.devices.adopt(tiling.spec, give)


def _arriving(route: Route, source: Host, target: Host, first_shard: int) -> list[_Arriving]:
    places: dict[int, list[tuple[int, Any]]] = {}
    for place in route.placements:
        if place.shard in target.shards:
            index = (..., *python_slices(place.slice))
            places.setdefault(place.piece, []).append(
                (first_shard + target.shards.index(place.shard), index)
            )
    return [
        _Arriving(link, tuple(places[number])) for number, link in _pieces(route, source, target)
    ]


def _land(
    context: Context, links: NcclLinks, arriving: Sequence[_Arriving], shards: Sequence[Words]
) -> list[list[Any]]:
    """Start all receipts. For every shard, the events after which it is complete."""
    events: list[list[Any]] = [[] for _ in shards]
    # A piece lands once, in the first of its places, and is copied from there to the others.
    windows = []
    for each in arriving:
        first, slices = each.places[0]
        windows.append((each.link, shards[first][slices]))
    for each, (_, words, event) in zip(arriving, links.receive(windows), strict=True):
        (first, _), *others = each.places
        events[first].append(event)
        for number, slices in others:
            shard = context.host.shards[number % len(context.host.shards)]
            events[number].append(
                _pass_on(context.cudas[shard], links, words, event, shards[number][slices])
            )
    return events


def _pass_on(
    cuda: Cuda, links: NcclLinks, words: Words, event: Any, window: Words, source: Words = None
) -> Any:
    """Copy words that are there after an event to another GPU of the host, whose event is returned.
    `source` is what they were copied from."""
    stream = links.copy_stream(cuda)
    with cuda.here():
        stream.wait_event(event)
    whole = window if window.flags.c_contiguous else cuda.empty_like(window, stream)
    cuda.fetch(whole, words, stream)
    if whole is not window:
        cuda.write(window, whole, stream)
    done = cuda.event(stream)
    # Or other streams would write to it while this one reads.
    links.keep([done], [words, whole, source])
    return done


def _open(context: Context) -> NcclLinks:
    assert context.links is not None, "this worker has GPUs and links"
    context.links.open()
    return context.links
