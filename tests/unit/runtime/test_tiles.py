"""What travels between the hosts of two meshes: plans on random meshes, shardings and hosts, byte
by byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, product
from time import monotonic, sleep

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.forms.exported_program import ReshardStep, Slice, TensorSpec
from shardopt.forms.reshard_steps import default_steps, find_plan_fault, tiles_by_device
from shardopt.hardware.cluster_file import load_cluster
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.runtime.devices.exchanges import Exchanges, Streamed
from shardopt.runtime.devices.tiles import (
    RouteSource,
    RouteTarget,
    Tiling,
    landing_of,
    python_slices,
)
from shardopt.runtime.program.host_routes import RouteParts
from shardopt.runtime.program.hosts import Host, hosts_of, hosts_of_mesh
from shardopt.runtime.program.instructions import MeshProgram, Program, Route
from shardopt.runtime.program.routes import make_route
from shardopt.runtime.transports.landing import Landing
from shardopt.runtime.transports.mailbox import Mailbox
from shardopt.solve.resharding.transfers import plan_resharding
from shardopt.support.errors import UserError

MESHES = (Mesh("a", (("x", 2),), (0, 1)), Mesh("b", (("x", 2),), (2, 3)))
WHOLE = TensorSpec((8,), "int32", Sharding(((),)))
SPLIT = TensorSpec((8,), "int32", Sharding((("x",),)))

DEVICES = 16
MESH_SHAPES = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=2)


@st.composite
def ends(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Mesh, Sharding], tuple[Mesh, Sharding]]:
    """A shape that the shardings need not divide, and two random (mesh, sharding), on some devices
    both perhaps."""
    rank = draw(st.integers(0, 3))
    sides = []
    for name in ("a", "b"):
        axes = tuple((f"x{number}", size) for number, size in enumerate(draw(MESH_SHAPES)))
        size = int(np.prod([extent for _, extent in axes]))
        dims: list[list[str]] = [[] for _ in range(rank)]
        for axis, _ in draw(st.permutations(axes)):
            where = draw(st.integers(-1, rank - 1)) if rank else -1
            if where >= 0:
                dims[where].append(axis)
        devices = tuple(draw(st.permutations(range(DEVICES)))[:size])
        sides.append((Mesh(name, axes, devices), Sharding(tuple(map(tuple, dims)))))
    return (
        tuple(draw(st.sampled_from((1, 2, 3, 5, 8, 12))) for _ in range(rank)),
        sides[0],
        sides[1],
    )


@settings(max_examples=100, deadline=None)
@given(
    ends(),
    st.sampled_from(["default", "send_recv", "local_allgather", "broadcast", "auto"]),
    st.data(),
)
def test_every_plan_moves_the_tensor(
    case: tuple[tuple[int, ...], tuple[Mesh, Sharding], tuple[Mesh, Sharding]],
    strategy: str,
    data: st.DataObject,
) -> None:
    """Wherever the hosts of both meshes are."""
    shape, source, target = case
    source_spec, target_spec = (TensorSpec(shape, "int32", end[1]) for end in (source, target))
    if strategy == "default":
        steps = default_steps((source[0], source_spec), (target[0], target_spec))
        if not steps:
            return  # nothing needs to move
    else:
        plan = plan_resharding(shape, 4, source, target, load_cluster("cpu-test:4x4"), strategy)
        rows, limits = plan.to_array().tolist(), 3 + len(shape)
        steps = tuple(
            ReshardStep(
                row[0], row[1], row[2], tuple(zip(row[3:limits], row[limits:], strict=True))
            )
            for row in rows
        )
    held, target_tiles = (
        tiles_by_device(source[0], source_spec),
        tiles_by_device(target[0], target_spec),
    )
    assert find_plan_fault(steps, held, target_tiles) is None
    whole = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    shards = Tiling(source[0], source_spec).split(whole)
    route = make_route((source[0], source_spec), (target[0], target_spec), steps)
    homes = data.draw(st.lists(st.integers(0, 2), min_size=DEVICES, max_size=DEVICES))
    groups = [[device for device, home in enumerate(homes) if home == host] for host in range(3)]
    for keep in (False, True):
        got = travel(route, shards, source[0], target[0], groups, keep)
        for shard, tile in zip(got, target_tiles.values(), strict=True):
            np.testing.assert_array_equal(filled(shard, tile), whole[python_slices(tile)])
    np.testing.assert_array_equal(Tiling(target[0], target_spec).join(got), whole)
    for host in hosts_of_mesh(target[0], groups):
        tiling = Tiling(target[0], target_spec, host)
        for shard, mine in zip(host.shards, tiling.spread(tiling.parts(whole)), strict=True):
            tile = target_tiles[target[0].devices[shard]]
            np.testing.assert_array_equal(filled(got[shard], tile), filled(mine, tile))


def filled(shard: np.ndarray, tile: Slice) -> np.ndarray:
    """A shard without what pads an uneven tile."""
    return shard[tuple(slice(limit - start) for start, limit in tile)]


def travel(
    route: Route,
    shards: list[np.ndarray],
    source: Mesh,
    target: Mesh,
    groups: list[list[int]],
    keep: bool,
) -> list[np.ndarray]:
    """The shards of the target, whose hosts get messages from those of the source and from each
    other."""
    givers, takers = hosts_of_mesh(source, groups), hosts_of_mesh(target, groups)
    mailboxes = {taker.name: Mailbox() for taker in takers}
    parts = RouteParts(route, takers)
    into = {taker.name: RouteTarget(route, target, taker, parts) for taker in takers}
    landings = {name: landing_of([each], givers) for name, each in into.items()}
    for name, landing in landings.items():
        mailboxes[name].expect(0, landing)
    sending: list[Callable[[], None]] = []
    for giver, taker in product(givers, takers):
        cut = RouteSource(route, giver, taker, parts)
        assert bool(cut.size) == (giver.name in landings[taker.name].pieces)
        if cut.size:
            pieces = cut.cut([shards[k] for k in giver.shards])
            send = trickle if landings[taker.name].streams else deliver
            sending.append(partial(send, mailboxes[taker.name], giver.name, pieces, keep))
    completions = {
        taker.name: Exchanges(route, target, takers, taker, 1, mailboxes[taker.name])
        for taker in takers
    }

    def finish(taker: Host) -> Sequence[np.ndarray]:
        def give(worker: str, tag: int, pieces: list[np.ndarray]) -> None:
            mailboxes[worker].deliver(taker.name, 0, tag, pieces)

        name, landing = taker.name, landings[taker.name]
        if landing.streams:
            streamed = streamed_by(mailboxes[name], into[name], givers, landing)
            return completions[name].complete(0, streamed, give)
        landed = mailboxes[name].take(0, 0) if landing.pieces else [None] * len(taker.shards)
        if into[name].is_complete:
            return into[name].all(landed, mailboxes[name].pool)
        return completions[name].complete(0, landed, give)

    with ThreadPoolExecutor(len(takers) + len(sending)) as threads, ending(mailboxes.values()):
        results = [threads.submit(finish, taker) for taker in takers]
        for sent in [threads.submit(send) for send in sending]:
            sent.result()
        finished = [result.result() for result in results]
    assert not any(mailbox._messages or mailbox._arrivals for mailbox in mailboxes.values()), (
        "something was sent and not received"
    )
    places = {
        k: shards_of_host[place]
        for host, shards_of_host in zip(takers, finished, strict=True)
        for place, k in enumerate(host.shards)
    }
    return [places[shard] for shard in range(target.size)]


@contextmanager
def ending(mailboxes: Iterable[Mailbox]) -> Iterator[None]:
    """Nobody waits any more at the end, whatever has happened."""
    try:
        yield
    finally:
        for mailbox in mailboxes:
            mailbox.cancel(RuntimeError("the test is over"))


def deliver(mailbox: Mailbox, source: str, pieces: list[np.ndarray], keep: bool) -> None:
    mailbox.deliver(source, 0, 0, pieces, keep=keep)


def trickle(mailbox: Mailbox, source: str, pieces: list[np.ndarray], keep: bool) -> None:
    """As a socket does, one after the other."""
    windows = mailbox.open(source, 0, 0).windows(source)
    for window, piece in zip(windows, pieces, strict=True):
        window[...] = piece
        mailbox.landed(source, 0, 0)
    mailbox.close(source, 0, 0)


def streamed_by(
    mailbox: Mailbox, into: RouteTarget, givers: Sequence[Host], landing: Landing
) -> Streamed:
    regions = {
        giver.name: [region for (region,) in into.regions(giver)]
        for giver in givers
        if giver.name in landing.pieces
    }
    return Streamed(mailbox.stream(0, 0), regions, partial(mailbox.end, 0, 0))


def test_parts_are_passed_on_while_others_come_in() -> None:
    """Rows of one host become replicas on two: each gets half of the rows in eight parts, and gives
    each part to the other as soon as it is there, whatever becomes of the copies on its devices."""
    source = Mesh("a", (("x", 2),), (0, 1)), Sharding((("x",), ()))
    target = Mesh("b", (("y", 4),), (4, 5, 8, 9)), Sharding(((), ()))
    specs = [TensorSpec((32, 3), "int32", end[1]) for end in (source, target)]
    chains = ((0, (4, 5, 8, 9)), (1, (8, 9, 4, 5)))
    steps = []
    for device, chain in chains:
        first = 16 * device
        steps.append(ReshardStep(0, device, chain[0], ((first, first + 16), (0, 3))))
        for hop, (giver, taker) in enumerate(pairwise(chain)):
            steps += [
                ReshardStep(1 + hop + k, giver, taker, ((row, row + 2), (0, 3)))
                for k, row in enumerate(range(first, first + 16, 2))
            ]
    route = make_route((source[0], specs[0]), (target[0], specs[1]), tuple(steps))
    (giver,), takers = hosts_of_mesh(source[0], ()), hosts_of_mesh(target[0], ((4, 5), (8, 9)))
    parts = RouteParts(route, takers)
    here, there = takers
    assert [part.slice[0] for part in parts.between(giver, here)] == [
        (row, row + 2) for row in range(0, 16, 2)
    ]
    whole = np.arange(96, dtype=np.int32).reshape(32, 3)
    shards = Tiling(source[0], specs[0]).split(whole)
    mailbox, into = Mailbox(), RouteTarget(route, target[0], here, parts)
    landing = landing_of([into], [giver])
    assert landing.streams
    mailbox.expect(0, landing)
    given: list[int] = []

    def give(worker: str, tag: int, pieces: list[np.ndarray]) -> None:
        assert worker == there.name
        given.extend(value for piece in pieces for value in piece.reshape(-1).tolist())

    exchanges = Exchanges(route, target[0], takers, here, 1, mailbox)
    streamed = streamed_by(mailbox, into, [giver], landing)
    with ThreadPoolExecutor(1) as thread, ending([mailbox]):
        result = thread.submit(exchanges.complete, 0, streamed, give)
        windows = mailbox.open("a", 0, 0).windows("a")
        pieces = RouteSource(route, giver, here, parts).cut(shards)
        for number, (window, piece) in enumerate(zip(windows, pieces, strict=True), 1):
            window[...] = piece
            mailbox.landed("a", 0, 0)
            # A round has up to two parts.
            least, deadline = 6 * (number - 1 if number < 8 else 8), monotonic() + 10
            while len(given) < least and not result.done() and monotonic() < deadline:
                sleep(0.001)
            assert least <= len(given) <= 6 * number
            assert given == list(range(len(given)))
        mailbox.close("a", 0, 0)
        assert not result.done()  # it waits for the other half
        first = 16
        for step in exchanges._steps:
            arriving = []
            for _ in step.landing.pieces.get(there.name, ()):
                arriving.append(whole[first : first + 2])
                first += 2
            if arriving:
                mailbox.deliver(there.name, 0, step.tag, arriving)
        for shard in result.result(10):
            np.testing.assert_array_equal(shard, whole)


def test_shards_of_uneven_tiles_are_padded() -> None:
    mesh = Mesh("m", (("x", 4),), (0, 1, 2, 3))
    spec = TensorSpec((5, 2), "int32", Sharding((("x",), ())))
    whole = np.arange(1, 11, dtype=np.int32).reshape(5, 2)
    shards = Tiling(mesh, spec).split(whole)
    assert [shard.tolist() for shard in shards] == [
        [[1, 2], [3, 4]],
        [[5, 6], [7, 8]],
        [[9, 10], [0, 0]],
        [[0, 0]] * 2,
    ]
    np.testing.assert_array_equal(Tiling(mesh, spec).join(shards), whole)


def test_a_slice_for_two_devices_travels_once() -> None:
    route = make_route(
        (MESHES[0], WHOLE),
        (MESHES[1], SPLIT),
        default_steps((MESHES[0], WHOLE), (MESHES[1], SPLIT)),
    )
    assert len(route.pieces) == len(route.placements) == 2
    steps = (ReshardStep(0, 0, 2, ((0, 4),)), ReshardStep(0, 0, 3, ((0, 4),)))
    route = make_route((MESHES[0], WHOLE), (MESHES[1], WHOLE), steps)
    assert (len(route.pieces), len(route.placements)) == (1, 2)


def test_hosts_of_a_mesh_have_the_devices_of_a_machine_each() -> None:
    mesh = Mesh("m", (("x", 2), ("y", 2)), (0, 2, 1, 5))
    assert hosts_of_mesh(mesh, ((0, 1), (2, 3))) == (
        Host("m", 0, 3, (0, 2), 0),
        Host("m", 1, 3, (1,), 1),
        Host("m", 2, 3, (3,), None),
    )
    (alone,) = hosts_of_mesh(mesh, ())
    assert (alone.name, alone.shards) == ("m", (0, 1, 2, 3))
    part = MeshProgram(
        mesh=mesh,
        buffers=(),
        arguments=(),
        indices=(),
        instructions=(),
        results=(),
        feedback=(),
        functions=(),
    )
    program = Program((), (), (), (part,), ((0, 1, 2, 5),))
    assert [host.name for host in hosts_of(program)["m"]] == ["m"]
    assert [host.shards for host in hosts_of(program, 2)["m"]] == [(0, 2), (1,), (3,)]
    with pytest.raises(UserError, match="expected at least one device per host, found 0"):
        hosts_of(program, 0)
