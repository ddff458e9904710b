"""Commands and answers over a connection to a worker: one frame each, plain values as JSON with the
arrays behind them.

    frame: <u64 bytes of text> {"arrays": [["float32", [2, 3]], …], "value": …} <contents of the
    arrays>

Values are None, booleans, numbers, strings, bytes, arrays, dictionaries, sequences (which arrive as
tuples), the errors of a run, and the few dataclasses that commands name. Reading calls nothing but
the constructors of those."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from shardopt.forms.exported_program import StageFunction, TensorSpec
from shardopt.mesh.mesh import Sharding
from shardopt.runtime.errors import Cancelled, MeshError
from shardopt.runtime.transports.vectors import receive_arrays, receive_exactly, send_arrays
from shardopt.support.errors import UserError

_HEADER = struct.Struct("<Q")
_DATACLASSES = {each.__name__: each for each in (StageFunction, TensorSpec, Sharding)}
_ERRORS = {each.__name__: each for each in (MeshError, Cancelled, UserError)}


def send_frame(connection: socket.socket, value: Any) -> None:
    """One thread at a time. Raises OSError; TypeError for what has no place in a frame."""
    arrays: list[np.ndarray] = []
    plain = _plain(value, arrays)
    table = [[array.dtype.name, list(array.shape)] for array in arrays]
    text = json.dumps({"arrays": table, "value": plain}, separators=(",", ":")).encode()
    send_arrays(connection, _HEADER.pack(len(text)) + text, arrays)


def receive_frame(connection: socket.socket) -> Any:
    """Raises EOFError when the peer has closed, OSError."""
    (size,) = _HEADER.unpack(receive_exactly(connection, _HEADER.size))
    document = json.loads(receive_exactly(connection, size))
    arrays = [np.empty(shape, np.dtype(name)) for name, shape in document["arrays"]]
    receive_arrays(connection, arrays)
    return _value(document["value"], arrays)


def _plain(value: Any, arrays: list[np.ndarray]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item, arrays) for item in value]
    if isinstance(value, dict):
        return {
            "dict": [[_plain(key, arrays), _plain(item, arrays)] for key, item in value.items()]
        }
    if isinstance(value, bytes):
        return {"bytes": _add(arrays, np.frombuffer(value, np.uint8))}
    if isinstance(value, np.ndarray | np.generic):
        return {"array": _add(arrays, np.asarray(value))}
    name = type(value).__name__
    if name in _DATACLASSES:
        return {
            "object": name,
            "fields": [_plain(getattr(value, each.name), arrays) for each in fields(value)],
        }
    if name in _ERRORS:
        return {"error": name, "arguments": _plain(value.args, arrays)}
    raise TypeError(f"a {name} cannot be sent to or from a worker")


def _add(arrays: list[np.ndarray], array: np.ndarray) -> int:
    arrays.append(array)
    return len(arrays) - 1


def _value(plain: Any, arrays: Sequence[np.ndarray]) -> Any:
    if isinstance(plain, list):
        return tuple(_value(item, arrays) for item in plain)
    if not isinstance(plain, dict):
        return plain
    match plain:
        case {"dict": items}:
            return {_value(key, arrays): _value(item, arrays) for key, item in items}
        case {"bytes": number}:
            return arrays[number].tobytes()
        case {"array": number}:
            return arrays[number]
        case {"object": name, "fields": items}:
            return _DATACLASSES[name](*(_value(item, arrays) for item in items))
        case {"error": name, "arguments": items}:
            return _ERRORS[name](*_value(items, arrays))
    raise ValueError(f"expected a value of a frame, found {plain}")
