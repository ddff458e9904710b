"""Messages from GPU to GPU, on a stand-in for cupy and NCCL that runs streams in any allowed
order."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from jaxlib import _jax

from shardopt.runtime.backends.local import LocalTransport
from shardopt.runtime.devices import dlpack
from shardopt.runtime.devices.clients import unshared_devices
from shardopt.runtime.devices.cuda import Cuda
from shardopt.runtime.errors import Cancelled
from shardopt.runtime.transports.buffers import BufferPool
from shardopt.runtime.transports.mailbox import Mailbox
from shardopt.runtime.transports.nccl import End, NcclLink, NcclLinks
from tests.unit.runtime.fake_cupy import GARBAGE, Event, Shard, World, fake_cupy

F32 = np.dtype(np.float32)


def link(source: int, target: int, back: bool = False) -> NcclLink:
    ends = End("a", source, "a"), End("b", target, "b")
    return NcclLink(*reversed(ends)) if back else NcclLink(*ends)


LINKS = [
    link(source, target, back) for source in (0, 1) for target in (0, 1) for back in (False, True)
]


@contextmanager
def workers(world: World) -> Iterator[dict[str, NcclLinks]]:
    """Two, with two GPUs each, which are 0 and 1, and 2 and 3."""
    cupy = fake_cupy(world)
    mailboxes = {name: Mailbox() for name in "ab"}
    links = {
        name: NcclLinks(
            cupy.cuda.nccl,
            name,
            {shard: Cuda(cupy, 2 * first + shard) for shard in (0, 1)},
            world.random.sample(LINKS, len(LINKS)),  # in whatever order they are found
            LocalTransport(name, mailboxes[name], mailboxes),
        )
        for first, name in enumerate("ab")
    }
    opening = [threading.Thread(target=each.open) for each in links.values()]
    for thread in opening:
        thread.start()
    for thread in opening:
        thread.join(20)
    assert all(each._is_open for each in links.values())
    yield links
    for each in links.values():
        each.close()


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


def test_a_source_may_be_written_to_when_its_message_is_gone() -> None:
    world = World(0)
    with workers(world) as both:
        stream = both["a"]._channels[link(0, 0)].stream
        sent = both["a"].send([(link(0, 0), Shard(world, np.ones(4, np.float32), stream), ...)])
        assert not any(sent.is_done for _ in range(50)), "nobody has received it"
        target = both["b"]._cudas[0].take((4,), F32)
        both["b"].receive([(link(0, 0), target)])
        sent.wait()
        np.testing.assert_array_equal(contents(target), np.ones(4))


def test_a_failure_ends_what_waits_for_ever() -> None:
    world = World(0)
    with workers(world) as both:
        stream = both["a"]._channels[link(0, 0)].stream
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


def test_memory_that_comes_back_waits_for_its_last_reader() -> None:
    waited = []

    class Token:
        def block_until_ready(self) -> None:
            waited.append(self)

    world, token = World(0), Token()
    cuda = Cuda(fake_cupy(world), 0, lambda: token)
    words = cuda.take((3, 5), F32)
    place = words.data.ptr
    del words
    again = cuda.take((5, 3), F32)
    assert again.data.ptr == place and waited == [token]
    assert cuda.take((5, 3), F32).data.ptr != place


@pytest.mark.parametrize(
    "dtype", [np.float32, np.bool_, np.complex128, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
)
def test_xla_takes_memory_over_as_it_is(dtype: type) -> None:
    """Also types that cupy has none of; the owner lives as long as the array."""
    device = unshared_devices(2).local[1]
    memory = BufferPool().take((4, 6), np.dtype(dtype))
    memory[...] = np.arange(24).reshape(4, 6)
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
    with pytest.raises(ValueError, match="elements of type float8_e8m0fnu have no code"):
        dlpack.capsule(64, (1,), np.dtype(ml_dtypes.float8_e8m0fnu), (dlpack.CPU, 0), None)


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
