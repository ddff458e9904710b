"""Commands and answers of workers: what goes into a frame comes out of it, and the wait for answers
ends."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardopt.forms.exported_program import StageFunction, TensorSpec
from shardopt.mesh.mesh import Sharding
from shardopt.runtime.backends import gather as gathering
from shardopt.runtime.backends.frames import receive_frame, send_frame
from shardopt.runtime.backends.gather import gather
from shardopt.runtime.errors import Cancelled, FailureKind, MeshError
from shardopt.support.errors import UserError
from tests.draws import draws

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(
            st.integers() | st.text(max_size=3) | st.tuples(st.integers()), inner, max_size=3
        )
    ),
    max_leaves=8,
)


def passed_on(value: Any) -> Any:
    left, right = socket.socketpair()
    with left, right:
        # What is large does not fit into the socket.
        thread = threading.Thread(target=send_frame, args=(left, value))
        thread.start()
        frame = receive_frame(right)
        thread.join()
    return frame


@settings(max_examples=draws(60), deadline=None)
@given(VALUES)
def test_values_come_out_as_they_went_in(value: Any) -> None:
    assert repr(passed_on(value)) == repr(value)  # which knows -0.0 and nan


@pytest.mark.parametrize(
    "array",
    [
        np.array(3, ml_dtypes.bfloat16),
        np.zeros((0, 3), np.int8),
        np.arange(12.0).reshape(3, 4).T,
        np.array([True, False]),
        np.ones((700, 800)),
    ],
    ids=["scalar", "empty", "transposed", "booleans", "large"],
)
def test_arrays_come_out_as_they_went_in(array: np.ndarray) -> None:
    (received,) = passed_on({7: [array]})[7]
    assert (received.dtype, received.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(received, array)


def test_functions_and_errors_travel() -> None:
    spec = TensorSpec((2, 3), "float32", Sharding((("x",), ()), ("y",)))
    function = StageFunction("f", b"\0\1", (spec,), (), (0,))
    assert passed_on((function,)) == (function,)
    error = passed_on(MeshError("m/1", "step 0", "gone", FailureKind.DIED))
    assert (error.args, error.kind, error.host) == (
        ("m/1", "step 0", "gone", 0),
        FailureKind.DIED,
        1,
    )
    assert isinstance(passed_on(Cancelled("stop")), Cancelled)
    assert str(passed_on(UserError("no"))) == "no"
    left, right = socket.socketpair()
    with left, right, pytest.raises(TypeError, match="a Thread cannot be sent to or from a worker"):
        send_frame(left, threading.Thread())


def test_an_unknown_object_is_refused() -> None:
    left, right = socket.socketpair()
    with left, right:
        send_frame(left, 0)
        header = right.recv(100)
        text = header[8:].replace(b"0", b'{"object":"Popen","fields":[]}')
        left.sendall(len(text).to_bytes(8, "little") + text)
        with pytest.raises(KeyError, match="Popen"):
            receive_frame(right)


def test_the_cause_is_waited_for_and_hosts_that_hang_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathering, "_PEER_SECONDS", 0.2)
    died, cut, fine = (Future[int]() for _ in range(3))
    hangs: Future[int] = Future()
    told: list[str] = []

    def cancel_all(reason: str) -> None:
        told.append(reason)
        fine.set_exception(Cancelled(reason))
        threading.Timer(
            0.05, died.set_exception, [MeshError("a/0", "", "killed", FailureKind.DIED)]
        ).start()

    cut.set_exception(MeshError("b", "", "connection reset", FailureKind.CUT))
    with pytest.raises(MeshError, match="mesh 'a', host 0: killed"):
        gather({"a/0": died, "a/1": hangs, "b": cut, "c": fine}, cancel_all)
    assert told == ["worker 'b' failed"]
