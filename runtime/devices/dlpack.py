"""Memory that is not XLA's as DLPack capsules, with element types that the libraries which own it
do not know.

cupy has no bfloat16 and no 8-bit floats; to move bytes it needs none, but XLA must be told what
they mean."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

CPU, CUDA = 1, 2  # kinds of devices in DLPack

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_NAMED_CODES = {
    "bfloat16": 4,
    "float8_e3m4": 7,
    "float8_e4m3": 8,
    "float8_e4m3b11fnuz": 9,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("type", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

# By the address of the managed tensor, until its deleter is called.
_alive: dict[int, tuple[Any, ...]] = {}
_guard = threading.Lock()

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


@_Deleter
def _delete(managed: Any) -> None:
    with _guard:
        _alive.pop(ctypes.addressof(managed.contents), None)


def capsule(
    pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: tuple[int, int], owner: Any
) -> Any:
    """C-contiguous memory on `device`, (kind, number). `owner` lives until whoever takes the
    capsule lets go.

    Whoever makes one must hand it over: what nobody takes is never let go. Raises ValueError for an
    unknown type."""
    code = _NAMED_CODES.get(dtype.name, _CODES.get(dtype.kind))
    if code is None or (dtype.kind == "V" and dtype.name not in _NAMED_CODES):
        raise ValueError(f"elements of type {dtype.name} have no code in DLPack")
    managed, extents = _Managed(), (ctypes.c_int64 * len(shape))(*shape)
    tensor = managed.tensor
    tensor.data, tensor.device, tensor.rank = pointer, _Device(*device), len(shape)
    tensor.type, tensor.shape = _Type(code, 8 * dtype.itemsize, 1), extents
    managed.deleter = _delete
    address = ctypes.addressof(managed)
    with _guard:
        # ctypes frees a structure with its last name in Python, while XLA still reads it.
        _alive[address] = (managed, extents, owner)
    return _new_capsule(address, b"dltensor", None)


def alive() -> int:
    """How many capsules are not let go yet."""
    return len(_alive)
