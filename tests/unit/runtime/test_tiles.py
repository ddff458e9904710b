"""What travels between the hosts of two meshes: plans on random meshes, shardings and hosts, byte
by byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, product
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.forms.exported_program import ReshardStep, Slice, TensorSpec
from shardopt.forms.reshard_steps import default_steps, find_plan_fault, tiles_by_device
from shardopt.hardware.cluster_file import load_cluster
from shardopt.mesh.mesh import Mesh, Sharding
from shardopt.runtime.devices.exchanges import (
    Exchanges,
    Streamed,
    parts_of_values,
    streamed_values,
)
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
from shardopt.runtime.transports.mailbox import Mailbox
from shardopt.solve.resharding.transfers import plan_resharding
from shardopt.support.errors import UserError
from tests.draws import draws

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


@settings(max_examples=draws(100), deadline=None)
@given(
    ends(),
    st.lists(
        st.sampled_from(["default", "send_recv", "local_allgather", "broadcast", "auto"]),
        min_size=1,
        max_size=3,
    ),
    st.data(),
)
def test_every_plan_moves_the_tensor(
    case: tuple[tuple[int, ...], tuple[Mesh, Sharding], tuple[Mesh, Sharding]],
    strategies: list[str],
    data: st.DataObject,
) -> None:
    """Wherever the hosts of both meshes are, and whatever else is in the message."""
    shape, source, target = case
    source_spec, target_spec = (TensorSpec(shape, "int32", end[1]) for end in (source, target))
    steps = [planned(strategy, shape, source, target) for strategy in strategies]
    if not all(steps):
        return  # nothing needs to move
    held, target_tiles = (
        tiles_by_device(source[0], source_spec),
        tiles_by_device(target[0], target_spec),
    )
    assert all(find_plan_fault(each, held, target_tiles) is None for each in steps)
    size = int(np.prod(shape))
    wholes = [
        np.arange(k * size, (k + 1) * size, dtype=np.int32).reshape(shape)
        for k in range(len(steps))
    ]
    values = [
        (
            make_route((source[0], source_spec), (target[0], target_spec), each),
            Tiling(source[0], source_spec).split(whole),
        )
        for each, whole in zip(steps, wholes, strict=True)
    ]
    homes = data.draw(st.lists(st.integers(0, 2), min_size=DEVICES, max_size=DEVICES))
    groups = [[device for device, home in enumerate(homes) if home == host] for host in range(3)]
    for keep in (False, True):
        results = travel(values, source[0], target[0], groups, keep)
        for got, whole in zip(results, wholes, strict=True):
            for shard, tile in zip(got, target_tiles.values(), strict=True):
                np.testing.assert_array_equal(filled(shard, tile), whole[python_slices(tile)])
            np.testing.assert_array_equal(Tiling(target[0], target_spec).join(got), whole)
    for host in hosts_of_mesh(target[0], groups):
        tiling = Tiling(target[0], target_spec, host)
        for shard, mine in zip(host.shards, tiling.spread(tiling.parts(whole)), strict=True):
            tile = target_tiles[target[0].devices[shard]]
            np.testing.assert_array_equal(filled(got[shard], tile), filled(mine, tile))


def planned(
    strategy: str,
    shape: tuple[int, ...],
    source: tuple[Mesh, Sharding],
    target: tuple[Mesh, Sharding],
) -> tuple[ReshardStep, ...]:
    if strategy == "default":
        specs = (TensorSpec(shape, "int32", sharding) for _, sharding in (source, target))
        return default_steps(*zip((source[0], target[0]), specs, strict=True))
    plan = plan_resharding(shape, 4, source, target, load_cluster("cpu-test:4x4"), strategy)
    rows, limits = plan.to_array().tolist(), 3 + len(shape)
    return tuple(
        ReshardStep(row[0], row[1], row[2], tuple(zip(row[3:limits], row[limits:], strict=True)))
        for row in rows
    )


def filled(shard: np.ndarray, tile: Slice) -> np.ndarray:
    """A shard without what pads an uneven tile."""
    return shard[tuple(slice(limit - start) for start, limit in tile)]


def travel(
    values: Sequence[tuple[Route, list[np.ndarray]]],
    source: Mesh,
    target: Mesh,
    groups: list[list[int]],
    keep: bool,
) -> list[list[np.ndarray]]:
    """The shards of each value at the target, whose hosts get messages from those of the source and
    from each other. `values` are routes and the shards of the source."""
    givers, takers = hosts_of_mesh(source, groups), hosts_of_mesh(target, groups)
    mailboxes = {taker.name: Mailbox() for taker in takers}
    parts = [RouteParts(route, takers) for route, _ in values]
    into = {
        taker.name: [
            RouteTarget(route, target, taker, of_route)
            for (route, _), of_route in zip(values, parts, strict=True)
        ]
        for taker in takers
    }
    landings = {name: landing_of(each, givers) for name, each in into.items()}
    for name, landing in landings.items():
        mailboxes[name].expect(0, landing)
    sending: list[Callable[[], None]] = []
    for giver, taker in product(givers, takers):
        pieces = [
            piece
            for (route, shards), of_route in zip(values, parts, strict=True)
            for piece in RouteSource(route, giver, taker, of_route).cut(
                [shards[k] for k in giver.shards]
            )
        ]
        assert bool(pieces) == (giver.name in landings[taker.name].pieces)
        if pieces:
            send = trickle if landings[taker.name].streams else deliver
            sending.append(partial(send, mailboxes[taker.name], giver.name, pieces, keep))
    completions = {
        taker.name: [
            Exchanges(route, target, takers, taker, number, mailboxes[taker.name])
            for number, (route, _) in enumerate(values, 1)
        ]
        for taker in takers
    }

    def finish(taker: Host) -> list[Sequence[np.ndarray]]:
        def give(worker: str, tag: int, pieces: list[np.ndarray]) -> None:
            mailboxes[worker].deliver(taker.name, 0, tag, pieces)

        mailbox, targets, size = mailboxes[taker.name], into[taker.name], len(taker.shards)
        landing, landed = landings[taker.name], list[Any]()
        if landing.streams:
            landed = streamed_by(mailbox, targets, givers)
        else:
            shards = mailbox.take(0, 0) if landing.pieces else [None] * len(landing.shards)
            landed = [shards[k * size : (k + 1) * size] for k in range(len(targets))]
        results: list[Sequence[np.ndarray]] = []
        for each, of_value, completion in zip(
            targets, landed, completions[taker.name], strict=True
        ):
            if not each.streams and isinstance(of_value, Streamed):
                mailbox.until(of_value.has_all)
                of_value = of_value.shards.given()
            if each.is_complete:
                results.append(each.all(of_value, mailbox.pool))
            else:
                results.append(completion.complete(0, of_value, give))
        return results

    with ThreadPoolExecutor(len(takers) + len(sending)) as threads, ending(mailboxes.values()):
        results = [threads.submit(finish, taker) for taker in takers]
        for sent in [threads.submit(send) for send in sending]:
            sent.result()
        finished = [result.result() for result in results]
    assert not any(mailbox._messages or mailbox._arrivals for mailbox in mailboxes.values()), (
        "something was sent and not received"
    )
    places = {
        shard: (number, place)
        for number, host in enumerate(takers)
        for place, shard in enumerate(host.shards)
    }
    return [
        [finished[places[shard][0]][value][places[shard][1]] for shard in range(target.size)]
        for value in range(len(values))
    ]


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
    mailbox: Mailbox, targets: Sequence[RouteTarget], givers: Sequence[Host]
) -> list[Streamed]:
    return streamed_values(mailbox, 0, 0, targets, parts_of_values(targets, givers))


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
    (streamed,) = streamed_by(mailbox, [into], [giver])
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
