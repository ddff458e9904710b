"""What carries messages: memory that comes back, pieces that land where they belong, sockets with
and without files."""

from __future__ import annotations

import contextlib
import gc
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.runtime.errors import Cancelled
from shardopt.runtime.transports import sockets, vectors
from shardopt.runtime.transports.buffers import ALIGNMENT, BufferPool, pays_to_keep
from shardopt.runtime.transports.landing import Landing, ShardSlice
from shardopt.runtime.transports.mailbox import Mailbox
from shardopt.runtime.transports.ray_objects import RayObjectTransport, as_bytes
from shardopt.runtime.transports.sockets import Address, SocketTransport
from tests.draws import draws

F32 = np.dtype(np.float32)
MIB = 1 << 20


def whole(*shapes: tuple[int, ...], dtype: np.dtype = F32, source: str = "a") -> Landing:
    """Every piece is a shard of its own."""
    places = [
        (ShardSlice(number, tuple(slice(0, size) for size in shape)),)
        for number, shape in enumerate(shapes)
    ]
    return Landing(tuple((shape, dtype) for shape in shapes), {source: places})


# Memory


def test_memory_comes_back_when_the_last_view_is_gone() -> None:
    pool = BufferPool()
    array = pool.take((MIB,), F32)
    assert pays_to_keep(array) and array.flags.writeable
    view, place = array[5:7], array.ctypes.data
    del array
    gc.collect()
    other = pool.take((MIB,), F32)
    assert other.ctypes.data != place, "the view still looks at it"
    del view
    gc.collect()
    again = pool.take((2, MIB // 2), np.dtype(np.int32))
    assert again.ctypes.data == place
    assert (pool.used_bytes, pool.free_bytes) == (8 * MIB, 0)


def test_pool_keeps_no_more_than_was_ever_in_use() -> None:
    pool = BufferPool()
    for count in range(1, 9):
        pool.take((count * MIB,), np.dtype(np.uint8))
    gc.collect()
    pool.take((MIB,), np.dtype(np.uint8))
    assert pool.free_bytes <= pool.peak_bytes <= 8 * MIB


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (300, 400)])
def test_large_memory_can_be_taken_over(shape: tuple[int, ...]) -> None:
    array = BufferPool().take(shape, np.dtype(ml_dtypes.bfloat16))
    assert array.shape == shape and array.dtype == ml_dtypes.bfloat16
    assert pays_to_keep(array) == (array.size > 1000)
    assert array.ctypes.data % ALIGNMENT == 0 or array.size < 1000


# Mailbox


def test_cancel_wakes_a_waiting_take() -> None:
    mailbox = Mailbox()
    threading.Timer(0.05, mailbox.cancel, [Cancelled("gone")]).start()
    with pytest.raises(Cancelled, match="gone"):
        mailbox.take(0, 0)
    mailbox.put(0, 1, [None])
    assert mailbox.take(0, 1) == [None], "what has come can still be taken"


def test_what_may_stay_is_not_copied() -> None:
    mailbox = Mailbox()
    mailbox.expect(7, whole((4, MIB), (MIB,), (8,)))
    pool = BufferPool()
    # The second is not aligned, and the third not worth it.
    pieces = [pool.take((4, MIB), F32), pool.take((2 * MIB,), F32)[1 : MIB + 1]]
    pieces.append(pool.take((8,), F32))
    for piece in pieces:
        piece[...] = 3
    mailbox.deliver("a", 0, 7, pieces, keep=True)
    first, second, third = mailbox.take(0, 7)
    assert first is pieces[0] and second is not pieces[1] and third is not pieces[2]
    np.testing.assert_array_equal(second, pieces[1])
    np.testing.assert_array_equal(third, pieces[2])
    mailbox.deliver("a", 1, 7, pieces)
    assert mailbox.take(1, 7)[0] is not pieces[0]


def test_replicas_of_what_stays_share_its_memory() -> None:
    places = (ShardSlice(0, (slice(0, MIB),)), ShardSlice(2, (slice(0, MIB),)))
    mailbox = Mailbox()
    mailbox.expect(0, Landing((((MIB,), F32),) * 3, {"a": [places]}))
    piece = BufferPool().take((MIB,), F32)
    for keep in (True, False):
        mailbox.deliver("a", 0, 0, [piece], keep=keep)
        first, missing, second = mailbox.take(0, 0)
        assert first is second and missing is None
        assert (first is piece) == keep


def test_a_message_in_parts_is_taken_when_all_are_there() -> None:
    halves = {name: [(ShardSlice(0, (slice(2 * k, 2 * k + 2),)),)] for k, name in enumerate("ab")}
    mailbox = Mailbox()
    mailbox.expect(0, Landing((((4,), F32),), halves))
    taken: list[object] = []
    waiting = threading.Thread(target=lambda: taken.extend(mailbox.take(3, 0)))
    waiting.start()
    mailbox.deliver("b", 3, 0, [np.full(2, 2, F32)])
    assert not taken
    mailbox.deliver("a", 3, 0, [np.full(2, 1, F32)])
    waiting.join(10)
    np.testing.assert_array_equal(taken[0], [1, 1, 2, 2])


def test_a_message_that_nobody_expects_is_refused() -> None:
    mailbox = Mailbox()
    mailbox.expect(0, whole((4,)))
    for source, tag in (("a", 1), ("b", 0)):
        with pytest.raises(
            LookupError,
            match=f"worker '{source}' sent message {tag} of step 5, which nobody expects",
        ):
            mailbox.deliver(source, 5, tag, [np.zeros(4, F32)])


# Sockets


@contextmanager
def joined(*, unix: bool) -> Iterator[tuple[SocketTransport, SocketTransport]]:
    """Worker a, which sends to worker b."""
    sender, receiver = (
        SocketTransport(Mailbox(), "127.0.0.1", b"token", name, unix=unix) for name in "ab"
    )
    try:
        sender.connect({"b": receiver.address})
        yield sender, receiver
    finally:
        sender.close()
        receiver.close()


@pytest.mark.parametrize("unix", [True, False])
def test_pieces_of_any_type_land_in_shards(unix: bool) -> None:
    pieces = [
        np.array(3, ml_dtypes.bfloat16),
        np.arange(6, dtype=np.int16).reshape(2, 3).T,
        np.zeros((0, 2), F32),
    ]
    pieces += [np.arange(4 * 300 * 300, dtype=np.float32).reshape(4, 300, 300)[:, 1:, 7:]]
    landing = Landing(
        tuple((piece.shape, piece.dtype) for piece in pieces),
        whole(*(piece.shape for piece in pieces)).pieces,
    )
    with joined(unix=unix) as (sender, receiver):
        family = socket.AF_UNIX if unix else socket.AF_INET
        assert sender._peers["b"].socket.family == family
        receiver.mailbox.expect(7, landing)
        for step in range(3):
            sender.send("b", step, 7, pieces)
        for step in range(3):
            for piece, shard in zip(pieces, receiver.mailbox.take(step, 7), strict=True):
                assert shard is not None and shard.dtype == piece.dtype
                np.testing.assert_array_equal(shard, piece)


@settings(max_examples=draws(40), deadline=None)
@given(st.data())
def test_any_slices_come_through_in_any_slices(data: st.DataObject) -> None:
    """With short limits, so that every way of splitting is taken: long runs, staged parts, many
    vectors."""
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=0, max_size=4)))
    margins = [(data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))) for _ in shape]
    index = (..., *(slice(low, low + size) for size, (low, _) in zip(shape, margins, strict=True)))
    outer = tuple(size + low + high for size, (low, high) in zip(shape, margins, strict=True))
    dtype = data.draw(st.sampled_from([np.int16, np.float64, ml_dtypes.float8_e4m3fn]))
    source = np.arange(int(np.prod(outer))).astype(dtype).reshape(outer)[index]
    near, far = socket.socketpair()
    with near, far, pytest.MonkeyPatch.context() as limits:
        limits.setattr(vectors, "_RUN_BYTES", 16)
        limits.setattr(vectors, "_STAGE_BYTES", 64)
        limits.setattr(vectors, "_VECTORS", 3)
        limits.setattr(vectors, "_SMALL_BYTES", data.draw(st.sampled_from([0, 128])))
        writing = threading.Thread(
            target=vectors.send_arrays, args=(near, b"head", [source, source])
        )
        writing.start()
        assert vectors.receive_exactly(far, 4) == b"head"
        targets: list[np.ndarray] = [np.zeros(outer, dtype)[index], np.zeros(shape, dtype)]
        vectors.receive_arrays(far, targets)
        writing.join(10)
    for target in targets:
        assert target.tobytes() == source.tobytes()


@settings(max_examples=draws(25), deadline=None)
@given(st.lists(st.integers(0, 200), min_size=1, max_size=30), st.integers(8, 64))
def test_small_and_large_messages_are_told_apart(sizes: list[int], ahead: int) -> None:
    """However many of them, or how little of one, is read at once."""
    messages = [np.random.default_rng(n).bytes(size) for n, size in enumerate(sizes)]
    near, far = socket.socketpair()
    with near, far, pytest.MonkeyPatch.context() as limits:
        limits.setattr(vectors, "_SMALL_BYTES", ahead)
        near.sendall(b"".join(len(each).to_bytes(8, "little") + each for each in messages))
        near.close()
        source = vectors.ReadAhead(far)
        for message in messages:
            size = int.from_bytes(source.take(8), "little")
            target = np.zeros(size, np.uint8)
            if not source.fill([target[: size // 2], target[size // 2 :]], size):
                vectors.receive_arrays(source, [target])
            assert target.tobytes() == message
        assert source.is_empty
        with pytest.raises(EOFError):
            source.take(8)


def test_sockets_refuse_a_foreign_token() -> None:
    foreign, listener = (
        SocketTransport(Mailbox(), "127.0.0.1", token) for token in (b"one", b"two")
    )
    try:
        with pytest.raises((EOFError, PermissionError, ConnectionError)):
            foreign.connect({"b": listener.address})
    finally:
        foreign.close()
        listener.close()


def test_another_address_is_met_by_tcp() -> None:
    """Two hosts made on one machine share its Unix sockets, but must use the link between them."""
    near = SocketTransport(Mailbox(), "127.0.0.1", b"token", "a")
    far = SocketTransport(Mailbox(), "127.0.0.2", b"token", "b")
    try:
        near.connect({"b": far.address, "c": Address("127.0.0.2", far.address.port, "")})
        assert {near._peers[name].socket.family for name in "bc"} == {socket.AF_INET}
    finally:
        near.close()
        far.close()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ((1, 0, 7, 16), "message 0 from worker 'a' was lost: found number 1"),
        ((0, 0, 7, 12), "message 7 of worker 'a': expected 16 bytes, found 12"),
        ((0, 4, 8, 16), "worker 'a' sent message 8 of step 4, which nobody expects"),
    ],
)
def test_a_wrong_message_fails_the_receiver(header: tuple[int, ...], message: str) -> None:
    with joined(unix=True) as (sender, receiver):
        receiver.mailbox.expect(7, whole((4,)))
        sender._peers["b"].socket.sendall(struct.pack("<QQQQ", *header))
        with pytest.raises(Exception, match=message):
            receiver.mailbox.take(0, 7)


def test_a_peer_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_HANDSHAKE_TIMEOUT_SECONDS", 0.05)
    listener = SocketTransport(Mailbox(), "127.0.0.1", b"token")
    try:
        with socket.create_connection(listener.address[:2]) as silent:
            silent.settimeout(10)
            assert len(vectors.receive_exactly(silent, 32)) == 32
            assert silent.recv(1) == b"", "the listener hangs up"
    finally:
        listener.close()


def test_a_slow_stranger_is_left_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends a byte now and then, and there may be as many like it as it wants."""
    monkeypatch.setattr(sockets, "_HANDSHAKE_TIMEOUT_SECONDS", 0.4)
    monkeypatch.setattr(sockets, "_MAX_UNPROVED", 3)
    listener = SocketTransport(Mailbox(), "127.0.0.1", b"token", "b", unix=False)
    strangers = [socket.create_connection(listener.address[:2]) for _ in range(3)]
    try:
        for stranger in strangers:
            stranger.settimeout(10)
            vectors.receive_exactly(stranger, 32)
        with socket.create_connection(listener.address[:2]) as more:
            assert more.recv(1) == b"", "so many at once and no more"
        begin = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - begin < 5:
                strangers[0].sendall(b"\0" if time.monotonic() - begin > 0.1 else b"")
                time.sleep(0.02)
        assert time.monotonic() - begin < 5, "each byte buys no more time"
        sender = SocketTransport(Mailbox(), "127.0.0.1", b"token", "a", unix=False)
        sender.connect({"b": listener.address})
        assert len(listener._accepted) <= 1  # what is over leaves nothing
        sender.close()
    finally:
        for stranger in strangers:
            stranger.close()
        listener.close()


@pytest.mark.parametrize(
    "greeting", [struct.pack("<H", 65535), b"GET / HTTP/1.1\r\n\r\n" + bytes(400), bytes(66)]
)
def test_strangers_are_hung_up_on_and_do_no_harm(greeting: bytes) -> None:
    listener = SocketTransport(Mailbox(), "127.0.0.1", b"token", "b", unix=False)
    try:
        with socket.create_connection(listener.address[:2]) as stranger:
            stranger.settimeout(10)
            vectors.receive_exactly(stranger, 32)
            stranger.sendall(greeting)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
        assert listener.mailbox._failure is None
    finally:
        listener.close()


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_nobody_listens_on_all_addresses(host: str) -> None:
    with pytest.raises(ValueError, match="expected the address of one of the cluster's networks"):
        SocketTransport(Mailbox(), host, b"token")


# Objects of Ray: what the actors do with them, without Ray


def test_objects_carry_all_pieces_in_order() -> None:
    pieces = [
        np.arange(6, dtype=np.int16).reshape(2, 3).T,
        np.array(3, ml_dtypes.bfloat16),
        np.zeros((0, 2), F32),
    ]
    receiver = RayObjectTransport("b", Mailbox(), {})
    shapes = whole(*(piece.shape for piece in pieces)).pieces
    receiver.mailbox.expect(
        7, Landing(tuple((piece.shape, piece.dtype) for piece in pieces), shapes)
    )
    data = [each.copy() for each in as_bytes(pieces)]
    for each in data:
        each.flags.writeable = False  # as Ray gives it
    receiver.receive("a", 0, 5, 7, data)
    for piece, shard in zip(pieces, receiver.mailbox.take(5, 7), strict=True):
        assert shard is not None
        np.testing.assert_array_equal(shard, piece)


@pytest.mark.parametrize(
    ("number", "bytes", "message"),
    [
        (1, 16, "message 0 from worker 'a' was lost"),
        (0, 15, r"expected pieces of \[16\] bytes, found \[15\]"),
    ],
)
def test_a_wrong_object_fails_the_receiver(number: int, bytes: int, message: str) -> None:
    receiver = RayObjectTransport("b", Mailbox(), {})
    receiver.mailbox.expect(7, whole((4,)))
    receiver.receive("a", number, 0, 7, [np.zeros(bytes, np.uint8)])
    with pytest.raises(Exception, match=message):
        receiver.mailbox.take(0, 7)
