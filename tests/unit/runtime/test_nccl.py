"""Messages from GPU to GPU, on a stand-in for cupy and NCCL that runs streams in any allowed
order."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, permutations
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from jaxlib import _jax

from shardopt.dialect.dtypes import NUMPY_NAMES
from shardopt.runtime.backends.local import LocalTransport
from shardopt.runtime.devices import dlpack
from shardopt.runtime.devices.clients import unshared_devices
from shardopt.runtime.devices.cuda import Cuda
from shardopt.runtime.errors import Cancelled, FailureKind, PeerGone, kind_of
from shardopt.runtime.transports.buffers import BufferPool
from shardopt.runtime.transports.mailbox import Mailbox
from shardopt.runtime.transports.nccl import End, MeshPair, NcclFailure, NcclLink, NcclLinks
from tests.unit.runtime.fake_cupy import GARBAGE, Event, Shard, World, fake_cupy

F32 = np.dtype(np.float32)


@pytest.fixture(scope="module", autouse=True)
def _only_what_tests_make_is_garbage() -> None:
    """They collect it often: what was there before would be looked through each time."""
    gc.collect()
    gc.freeze()


def link(source: int, target: int, back: bool = False) -> NcclLink:
    ends = End("a", source, "a"), End("b", target, "b")
    return NcclLink(*reversed(ends)) if back else NcclLink(*ends)


ENDS = {name: tuple(End(name, shard, name) for shard in (0, 1)) for name in "ab"}
PAIRS = [MeshPair(ENDS["a"], ENDS["b"]), MeshPair(ENDS["b"], ENDS["a"])]


@contextmanager
def workers(world: World) -> Iterator[dict[str, NcclLinks]]:
    """Two, with two GPUs each, which are 0 and 1, and 2 and 3."""
    with opened(world, ENDS, PAIRS) as links:
        yield links


@contextmanager
def opened(
    world: World, meshes: Mapping[str, Sequence[End]], pairs: Sequence[MeshPair]
) -> Iterator[dict[str, NcclLinks]]:
    """The workers of all meshes, which open their links at the same time."""
    links = closed(world, meshes, pairs)
    opening = [threading.Thread(target=each.open) for each in links.values()]
    for thread in opening:
        thread.start()
    for thread in opening:
        thread.join(20)
    assert all(each._is_open for each in links.values())
    yield links
    for each in links.values():
        each.close()


def closed(
    world: World, meshes: Mapping[str, Sequence[End]], pairs: Sequence[MeshPair]
) -> dict[str, NcclLinks]:
    cupy, number = fake_cupy(world), count()
    cudas = {end: Cuda(cupy, next(number)) for ends in meshes.values() for end in ends}
    mailboxes = {end.worker: Mailbox() for end in cudas}
    return {
        name: NcclLinks(
            cupy.cuda.nccl,
            name,
            {end.shard: cuda for end, cuda in cudas.items() if end.worker == name},
            # In whatever order they are found, and those of other meshes are not.
            [
                pair
                for pair in world.random.sample(pairs, len(pairs))
                if any(end.worker == name for end in pair.ranks)
            ],
            LocalTransport(name, mailbox, mailboxes),
        )
        for name, mailbox in mailboxes.items()
    }


def contents(words: Any, dtype: np.dtype = F32) -> np.ndarray:
    return words._array.view(dtype).copy()


@pytest.mark.parametrize("seed", range(5))
def test_pieces_arrive_in_whatever_order_streams_run(seed: int) -> None:
    """Both ways at once, several messages, slices in one run and not; sources are dropped as soon as
    they are sent."""
    world = World(seed)
    compute = fake_cupy(world)
    with compute.cuda.Device(0):
        streams = [compute.cuda.Stream(non_blocking=True) for _ in range(2)]
    with workers(world) as both:
        indices = [np.s_[..., 0:2, 0:6], np.s_[..., 1:4, 2:5], np.s_[...]]
        arrived = []
        for message in range(4):
            for name, back in (("a", False), ("b", True)):
                other = "b" if name == "a" else "a"
                values = [
                    np.random.default_rng((seed, message, k, back)).random((4, 6), np.float32)
                    for k in range(6)
                ]
                links = [link(k % 2, k // 3, back) for k in range(6)]
                parts = [
                    (each, Shard(world, value, world.random.choice(streams)), indices[k % 3])
                    for k, (each, value) in enumerate(zip(links, values, strict=True))
                ]
                both[name].send(parts)
                del parts
                gc.collect()
                cudas = both[other]._cudas
                shards = [cudas[each.target.shard].take((4, 6), F32) for each in links]
                windows = [
                    (each, shard[indices[k % 3]])
                    for k, (each, shard) in enumerate(zip(links, shards, strict=True))
                ]
                events = [event for _, _, event in both[other].receive(windows)]
                arrived.append((values, shards, events))
        assert world.host_waits == 0, "nobody has waited yet"
        for values, shards, events in arrived:
            for k, (value, shard, event) in enumerate(zip(values, shards, events, strict=True)):
                event.synchronize()
                np.testing.assert_array_equal(
                    contents(shard)[indices[k % 3]], value[indices[k % 3]]
                )
        for each in both.values():
            each.drain()
        assert [len(group) for group in world.groups] == [6] * 16


@pytest.mark.parametrize("seed", range(20))
def test_meshes_of_several_workers_exchange_without_waiting_for_each_other(seed: int) -> None:
    """Three meshes, each pair with a communicator there and one back; messages come in one order of
    the program at all workers, and each is of some pieces only."""
    world = World(seed)
    draw = world.random
    meshes = {}
    for mesh in "abc":
        shards, hosts = draw.randint(1, 3), draw.randint(1, 2)
        meshes[mesh] = tuple(
            End(mesh, shard, f"{mesh}/{shard % hosts}" if hosts <= shards else mesh)
            for shard in range(shards)
        )
    pairs = [MeshPair(meshes[one], meshes[other]) for one, other in permutations("abc", 2)]
    compute = fake_cupy(world)
    with compute.cuda.Device(0):
        stream = compute.cuda.Stream(non_blocking=True)
    with opened(world, meshes, pairs) as links:
        assert len(world.members) == len(pairs), "one communicator for a pair and direction"
        todo: dict[str, list[Any]] = {name: [] for name in links}
        for _ in range(12):
            pair = draw.choice(pairs)
            pieces = [
                (NcclLink(draw.choice(pair.source), draw.choice(pair.target)), draw.random())
                for _ in range(draw.randint(1, 5))
            ]
            for source in {each.source.worker for each, _ in pieces}:
                of_source = [each for each in pieces if each[0].source.worker == source]
                for target in {each.target.worker for each, _ in of_source}:
                    message = [each for each in of_source if each[0].target.worker == target]
                    todo[source].append(("send", message))
            for target in {each.target.worker for each, _ in pieces}:
                arriving = [each for each in pieces if each[0].target.worker == target]
                # By worker, as the list of a RECV has them.
                arriving.sort(key=lambda each: each[0].source.worker)
                todo[target].append(("recv", arriving))
        arrived = []
        while left := [name for name, each in todo.items() if each]:  # workers run freely
            name = draw.choice(left)
            what, message = todo[name].pop(0)
            if what == "send":
                shards = [np.full(3, value, np.float32) for _, value in message]
                links[name].send(
                    [
                        (each, Shard(world, shard, stream), ...)
                        for (each, _), shard in zip(message, shards, strict=True)
                    ]
                )
            else:
                targets = [
                    links[name]._cudas[each.target.shard].take((3,), F32) for each, _ in message
                ]
                events = links[name].receive(
                    [(each, target) for (each, _), target in zip(message, targets, strict=True)]
                )
                arrived.append((message, targets, [event for _, _, event in events]))
        assert world.host_waits == 0
        for message, targets, events in arrived:
            for (_, value), target, event in zip(message, targets, events, strict=True):
                event.synchronize()
                np.testing.assert_array_equal(contents(target), np.full(3, value, np.float32))


def test_a_worker_that_never_comes_keeps_nobody_from_being_cancelled() -> None:
    world = World(0)
    links = closed(world, ENDS, PAIRS[:1])
    caught: list[BaseException] = []

    def open_links() -> None:
        try:
            links["a"].open()
        except Cancelled as error:
            caught.append(error)

    opening = threading.Thread(target=open_links)
    opening.start()
    time.sleep(0.02)
    assert opening.is_alive()
    links["a"]._transport.mailbox.cancel(Cancelled("the other is gone"))
    opening.join(10)
    assert [str(error) for error in caught] == ["the other is gone"]
    # It comes after all: what is made then is of no use.
    links["b"].open()
    limit = time.monotonic() + 10
    while len(links["a"]._channels) < 2 and time.monotonic() < limit:
        time.sleep(1e-3)
    assert len(links["a"]._channels) == 2
    assert all(channel.comm.aborted for channel in links["a"]._channels.values())


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1, "a call of CUDA failed"),
        (2, "NCCL_DEBUG=WARN says which"),
        (3, "a fault inside of NCCL"),
        (4, "an argument that NCCL does not take"),
        (5, "calls of NCCL that do not fit each other"),
        (42, "the first to have"),
    ],
)
def test_errors_of_nccl_are_in_our_words(code: int, words: str) -> None:
    with workers(World(0)) as both:
        channel = both["a"]._channel(link(0, 0), ENDS["a"][0])
        channel.comm.error = code
        with pytest.raises(NcclFailure, match=rf"NCCL: .*{words}.* \(ncclResult_t {code}: "):
            both["a"].check()
        channel.comm.error = 6
        with pytest.raises(PeerGone, match="a GPU at the other end") as gone:
            both["a"].check()
        assert kind_of(gone.value) is FailureKind.CUT, "a consequence: the other end is the cause"
        channel.comm.error = 7
        both["a"].check()  # still at work


def test_a_source_may_be_written_to_when_its_message_is_gone() -> None:
    world = World(0)
    with workers(world) as both:
        stream = both["a"]._channel(link(0, 0), ENDS["a"][0]).stream
        sent = both["a"].send([(link(0, 0), Shard(world, np.ones(4, np.float32), stream), ...)])
        assert not any(sent.is_done for _ in range(50)), "nobody has received it"
        target = both["b"]._cudas[0].take((4,), F32)
        both["b"].receive([(link(0, 0), target)])
        sent.wait()
        np.testing.assert_array_equal(contents(target), np.ones(4))


def test_a_failure_ends_what_waits_for_ever() -> None:
    world = World(0)
    with workers(world) as both:
        stream = both["a"]._channel(link(0, 0), ENDS["a"][0]).stream
        sent = both["a"].send([(link(0, 0), Shard(world, np.ones(4, np.float32), stream), ...)])
        caught: list[BaseException] = []

        def wait() -> None:
            try:
                sent.wait()
            except Cancelled as error:
                caught.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.02)
        assert waiting.is_alive()
        both["a"]._transport.mailbox.cancel(Cancelled("the other is gone"))
        waiting.join(10)
        assert [str(error) for error in caught] == ["the other is gone"]
        assert all(channel.comm.aborted for channel in both["a"]._channels.values())
        with pytest.raises(Cancelled, match="the other is gone"):
            both["a"].receive([])
        both["b"].abort()


def test_memory_that_may_be_read_still_is_left_alone_while_there_is_little_of_it() -> None:
    waited = []

    class Token:
        def block_until_ready(self) -> None:
            waited.append(self)

    world, token = World(0), Token()
    cuda = Cuda(fake_cupy(world), 0, lambda: token)
    places = []
    for _ in range(3):
        words = cuda.take((3, 5), F32)
        places.append(words.data.ptr)
        del words
    assert len(set(places)) == 3 and not waited, "the host does not wait"
    again = cuda.take((5, 3), F32)
    assert again.data.ptr == places[0] and waited == [token], "the one that came back first"


@pytest.mark.parametrize(
    "dtype",
    [
        np.float32,
        np.bool_,
        np.complex128,
        ml_dtypes.bfloat16,
        *(getattr(ml_dtypes, name) for name in NUMPY_NAMES.values() if name.startswith("float8")),
    ],
)
def test_xla_takes_memory_over_as_it_is(dtype: type) -> None:
    """Also types that cupy has none of; the owner lives as long as the array."""
    device = unshared_devices(2).local[1]
    memory = BufferPool().take((128, 600), np.dtype(dtype))  # small ones are not aligned
    memory.view(np.uint8)[...] = np.arange(memory.nbytes).reshape(memory.view(np.uint8).shape)
    place, before = memory.ctypes.data, dlpack.alive()
    buffer = _jax.dlpack_managed_tensor_to_buffer(
        dlpack.capsule(place, memory.shape, memory.dtype, (dlpack.CPU, 0), memory), device, None
    )
    assert buffer.unsafe_buffer_pointer() == place and buffer.dtype == memory.dtype
    assert np.asarray(buffer).tobytes() == memory.tobytes()
    assert dlpack.alive() == before + 1
    del buffer
    gc.collect()
    assert dlpack.alive() == before


def test_unknown_types_have_no_capsule() -> None:
    with pytest.raises(ValueError, match="elements of type int4 have no code"):
        dlpack.capsule(64, (1,), np.dtype(ml_dtypes.int4), (dlpack.CPU, 0), None)


def test_the_stand_in_overwrites_what_is_let_go() -> None:
    """Or the tests above could not fail."""
    world = World(0)
    cupy = fake_cupy(world)
    with cupy.cuda.Device(0):
        stream = cupy.cuda.Stream(non_blocking=True)
    shard = Shard(world, np.ones(4, np.float32), stream)
    words = Cuda(cupy, 0).view(shard, stream)._array
    stream.record(event := Event(world))
    event.synchronize()
    assert words.view(F32)[0] == 1
    del shard
    gc.collect()
    assert set(words.view(np.uint8).tolist()) == {GARBAGE}
