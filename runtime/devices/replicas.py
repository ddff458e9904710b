"""Devices that all run one program, host or accelerator, for measurements."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jax._src import core
from jax.extend.backend import get_compile_options
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib import xla_client as xc

from shardopt.dialect.dtypes import numpy_dtype
from shardopt.ir.jax_versions import result_handler
from shardopt.runtime.devices.xla import DeviceArray, Executable, keep_barriers

# Shapes, of rank 1 at least, and MLIR element types.
Results = Sequence[tuple[tuple[int, ...], str]]


class Replicas:
    """Devices that all run one program, for measurements: no partitioning, collectives name
    replicas."""

    def __init__(self, devices: Sequence[Any]) -> None:
        self._devices = list(devices)
        self._sharding = NamedSharding(
            JaxMesh(np.array(self._devices), ("replica",)), PartitionSpec("replica")
        )
        self._compiled: dict[bytes, tuple[Executable, str]] = {}

    def compile_together(self, programs: Iterable[tuple[bytes, Results]]) -> None:
        """Side by side, what `compile` is then asked for, instead of what was compiled so before.
        What the compiler refuses is refused again there."""
        self._compiled = {}
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            for bytecode, results in programs:
                threads.submit(self._keep, bytecode, results)

    def _keep(self, bytecode: bytes, results: Results) -> None:
        self._compiled[bytecode] = self._compile(bytecode, results)

    def compile(self, bytecode: bytes, results: Results) -> tuple[Executable, str]:
        """The program, whose results are `results`, and its optimized HLO."""
        return self._compiled.get(bytecode) or self._compile(bytecode, results)

    def _compile(self, bytecode: bytes, results: Results) -> tuple[Executable, str]:
        ids = [[device.id] for device in self._devices]
        options = get_compile_options(
            num_replicas=len(ids), num_partitions=1, device_assignment=ids
        )
        if self._devices[0].platform == "cpu":
            keep_barriers(options.executable_build_options, bytecode)
        client = self._devices[0].client
        loaded = client.compile_and_load(bytecode, tuple(self._devices), options)
        wraps = [result_handler(self._aval(*result), self._sharding) for result in results]
        return Executable("main", loaded, wraps), str(loaded.hlo_modules()[0].to_string())

    def put(self, array: np.ndarray) -> DeviceArray:
        """A copy on every device."""
        aval = core.ShapedArray(
            (array.shape[0] * len(self._devices), *array.shape[1:]), array.dtype
        )
        # Memory of their own: XLA aliases aligned arrays, and some programs work in place.
        copies = [np.array(array) for _ in self._devices]
        return xc.batched_device_put(aval, self._sharding, copies, self._devices, enable_x64=True)

    def _aval(self, shape: tuple[int, ...], dtype: str) -> Any:
        return core.ShapedArray((shape[0] * len(self._devices), *shape[1:]), numpy_dtype(dtype))


def accelerators() -> list[Any]:
    """The devices of JAX's default backend, unless that is the host."""
    import jax

    return [device for device in jax.local_devices() if device.platform != "cpu"]
