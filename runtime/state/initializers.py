"""Values that every element computes from its own global index, so that each worker makes its
shards alone.

Random numbers are those of SplitMix64 (Steele, Lea and Flood, OOPSLA'14): output number i of a
generator is a hash of i, so element i of an array is the same whatever the mesh, the sharding and
the number of hosts. The seed of an array is drawn from that of the run and the array's name."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import prod, tau

import numpy as np

from shardopt.dialect.dtypes import numpy_dtype
from shardopt.forms.exported_program import Slice, TensorSpec
from shardopt.support.errors import UserError

_CHUNK_ELEMENTS = 1 << 18  # what is computed in double precision at once, beside the shard itself
_INCREMENT, _FIRST, _SECOND = (
    np.uint64(each) for each in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


@dataclass(frozen=True)
class Initializer:
    """`full`: a everywhere. `uniform`: from a to below b; integers are rounded down. `normal`: mean
    a, deviation b."""

    kind: str
    a: float
    b: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("full", "uniform", "normal"):
            raise UserError(f"unknown filling '{self.kind}': known are full, uniform, normal")


def full(value: float) -> Initializer:
    return Initializer("full", value)


def uniform(low: float, high: float, seed: int) -> Initializer:
    return Initializer("uniform", low, high, seed)


def normal(mean: float, deviation: float, seed: int) -> Initializer:
    return Initializer("normal", mean, deviation, seed)


def fill(initializer: Initializer, name: str, spec: TensorSpec, slice_: Slice) -> np.ndarray:
    """The elements of a global slice of the array `name`, in new memory."""
    dtype = numpy_dtype(spec.dtype)
    shape = [limit - start for start, limit in slice_]
    if initializer.kind == "full":
        return np.full(shape, initializer.a, dtype)
    elements = np.empty(shape, dtype)
    if not slice_:
        elements[...] = _values(
            initializer, _key(initializer.seed, name), np.zeros((), np.uint64), dtype
        )
        return elements
    rows = max(1, _CHUNK_ELEMENTS // max(1, prod(shape[1:])))
    for first in range(0, shape[0], rows):
        last = min(first + rows, shape[0])
        start, _ = slice_[0]
        index = _flat_indices(spec.shape, ((start + first, start + last), *slice_[1:]))
        elements[first:last] = _values(initializer, _key(initializer.seed, name), index, dtype)
    return elements


def _flat_indices(shape: tuple[int, ...], slice_: Slice) -> np.ndarray:
    """The row-major number in the whole array of every element of the slice."""
    index = np.zeros([1] * len(shape), np.uint64)
    for dim, (start, limit) in enumerate(slice_):
        stride = prod(shape[dim + 1 :])
        along = np.arange(start, limit, dtype=np.uint64) * np.uint64(stride)
        index = index + along.reshape([-1 if other == dim else 1 for other in range(len(shape))])
    return index


def _values(initializer: Initializer, key: int, index: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if initializer.kind == "uniform":
        values = initializer.a + (initializer.b - initializer.a) * _unit(key, index)
        return np.floor(values).astype(dtype) if dtype.kind in "biu" else values.astype(dtype)
    twice = index + index  # two numbers an element
    radius = np.sqrt(-2.0 * np.log1p(-_unit(key, twice)))
    return (
        initializer.a + initializer.b * radius * np.cos(tau * _unit(key, twice + np.uint64(1)))
    ).astype(dtype)


def _unit(key: int, index: np.ndarray) -> np.ndarray:
    """Output `index` of the generator that starts at `key`, as a double in [0, 1)."""
    with np.errstate(over="ignore"):
        bits = np.uint64(key) + (index + np.uint64(1)) * _INCREMENT
        bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
        bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
        bits = bits ^ (bits >> np.uint64(31))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _key(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little")
