"""GPUs as their drivers count them, and as a worker's process is to see them. None is opened here:
a process that plans, or that drives workers in other processes, must leave their memory alone."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Literal

from shardopt.support.errors import UserError

GpuKind = Literal["cuda", "rocm"]

_PLUGINS: Mapping[GpuKind, tuple[str, ...]] = {
    "cuda": ("jax_cuda13_plugin", "jax_cuda12_plugin"),
    "rocm": ("jax_rocm7_plugin", "jax_rocm60_plugin"),
}
# Library, and which of its functions starts it, if one has to, and counts. Counting makes no
# context, and obeys the variables below.
_DRIVERS: Mapping[GpuKind, tuple[str, str, str]] = {
    "cuda": ("libcuda.so.1", "cuInit", "cuDeviceGetCount"),
    "rocm": ("libamdhip64.so", "hipInit", "hipGetDeviceCount"),
}
_VISIBLE: Mapping[GpuKind, str] = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}


def gpu_kind() -> GpuKind | None:
    """That of JAX's plugin for GPUs; None where there is none."""
    kinds = (kind for kind, names in _PLUGINS.items() if any(map(find_spec, names)))
    return next(kinds, None)


@cache
def num_gpus() -> int:
    """How many GPUs the driver of this machine shows to this process, with a plugin or without."""
    return max(_counted(*driver) for driver in _DRIVERS.values())


def _counted(library: str, start: str, count: str) -> int:
    number = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL(library)
        failed = getattr(driver, start)(0) or getattr(driver, count)(ctypes.byref(number))
    except (OSError, AttributeError):  # no such driver
        return 0
    return 0 if failed else number.value


def worker_environment(
    gpus: Sequence[int], inherited: Mapping[str, str], kind: GpuKind
) -> dict[str, str]:
    """Variables with which a process sees these GPUs only, numbered from zero in this order; they
    have the numbers that a process with the `inherited` variables sees. Raises UserError for one
    that such a process does not see."""
    name = _VISIBLE[kind]
    shown = inherited.get(name)
    names = None if shown is None else [each.strip() for each in shown.split(",") if each.strip()]
    if names is not None and (missing := [gpu for gpu in gpus if gpu >= len(names)]):
        raise UserError(f"expected GPU {missing[0]} among those of {name}={shown}")
    return {name: ",".join(str(gpu) if names is None else names[gpu] for gpu in gpus)}
