"""Meshes as XLA sees them. Only files of this folder touch private parts of jax and jaxlib.

One `XlaMesh` is one independent CPU client with as many devices as the mesh, or this process's part
of one that several processes make up (`clients.py`), or GPUs of the process's one client for them
(`gpus.py`); without GPUs, no default JAX backend is ever started. Compile options and traps: stage
functions are in Shardy's form, as GSPMD, which XLA takes for a module with `mhlo.sharding`, drops
the sums of partial values; executables check neither number, shape, sharding nor liveness of their
inputs (an error ends the process), so `fault_of` exists for a checked mode; arrays are put from
fresh memory only, because an aligned numpy array is aliased rather than copied."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
from jax._src import core
from jax.extend.backend import get_compile_options
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib import _jax, lapack
from jaxlib import xla_client as xc

from shardopt.caching.store import Store
from shardopt.dialect.dtypes import numpy_dtype
from shardopt.dialect.sharding import to_mhlo
from shardopt.forms.exported_program import StageFunction, TensorSpec
from shardopt.ir.jax_versions import kernel_options, merges_behind_barriers, result_handler
from shardopt.mesh.mesh import Mesh
from shardopt.runtime.devices.clients import Devices, unshared_devices
from shardopt.runtime.devices.executables import compiled_in_parallel, load_or_compile

_GSPMD_PARTIAL = b"last_tile_dims={unreduced"

# XLA's CPU collectives deadlock when executions run ahead without bound: the threads of a later one
# starve an earlier.
_HOST_RUNS = 2
# The queues of a GPU keep what it is given in order; bounded, as each execution under way holds its
# temporaries.
_GPU_RUNS = 32

# What JAX calls pages of the host that devices read and write themselves; CPUs have them, too.
HOST_MEMORY = "pinned_host"

DeviceArray = Any  # a jax.Array over the devices of one mesh
Token = Any  # has block_until_ready(); raises what the execution raised


@dataclass(frozen=True)
class _Layout:
    """What jaxlib wants to know about a spec on this mesh; `wrap` makes one array from an
    execution's shards."""

    aval: Any
    sharding: NamedSharding
    wrap: Any


class Executable:
    """A compiled stage function. Calling it returns at once, with arrays that are still being
    computed.

    `temporary_bytes` is what a device holds beside arguments and results while it runs.
    """

    def __init__(self, name: str, loaded: Any, wraps: Sequence[Any]) -> None:
        self.name = name
        self._loaded = loaded
        self._wraps = wraps

    @property
    def temporary_bytes(self) -> int:
        return int(self._loaded.get_compiled_memory_stats().temp_size_in_bytes)

    def __call__(self, inputs: Sequence[DeviceArray]) -> tuple[list[DeviceArray], Token]:
        results = self._loaded.execute_sharded(inputs, with_tokens=True)
        token = results.consume_token()
        return results.consume_with_handlers(self._wraps), token


class XlaMesh:
    """The devices of one mesh: compile for them, put arrays on them, read arrays back.

    Without `devices` they are those of a new client. Where some belong to other processes, `shards`
    are those of this one, and all processes must call the same executables in the same order."""

    def __init__(self, mesh: Mesh, devices: Devices | None = None) -> None:
        self.mesh = mesh
        self._chosen = devices
        self._layouts: dict[TensorSpec, _Layout] = {}
        self._listing = threading.Lock()

    @cached_property
    def _opened(self) -> Devices:
        return self._chosen or unshared_devices(self.mesh.size)

    @property
    def _devices(self) -> list[Any]:
        return self._opened.all

    @property
    def runs_in_flight(self) -> int:
        """How many RUNs may be dispatched before the first of them is done."""
        return _HOST_RUNS if self._devices[0].platform == "cpu" else _GPU_RUNS

    @cached_property
    def _jax_mesh(self) -> JaxMesh:
        return JaxMesh(np.array(self._devices).reshape(self.mesh.shape), self.mesh.axis_names)

    def compile_all(
        self, functions: Sequence[StageFunction], *, quick: bool = False, store: Store | None = None
    ) -> dict[str, Executable]:
        """All functions by name, compiled on several threads; those with the same bytecode once.
        See `compile`."""
        first = {each.bytecode: each for each in reversed(functions)}
        _ = self._devices  # made once, before the threads ask for them
        made = compiled_in_parallel(partial(self.compile, quick=quick, store=store), first.values())
        if store is not None:
            store.trim()
        by_bytecode = dict(zip(first, made, strict=True))
        return {each.name: by_bytecode[each.bytecode] for each in functions}

    def compile(
        self, function: StageFunction, *, quick: bool = False, store: Store | None = None
    ) -> Executable:
        """Compile for all devices of the mesh, or take what `store` has. `quick` takes a
        third of the compile time and makes slower code (for tests).

        Raises ValueError if XLA changed the sharding of an argument or result: the caller would
        misread its shards."""
        if _GSPMD_PARTIAL in function.bytecode:
            raise ValueError(
                f"function @{function.name}: unreduced values need Shardy's form, found "
                "'mhlo.sharding'"
            )
        if b"lapack" in function.bytecode:
            lapack._lapack.initialize()  # its custom calls crash the process otherwise
        options = get_compile_options(
            num_replicas=1,
            num_partitions=self.mesh.size,
            device_assignment=[[device.id for device in self._devices]],
        )
        build = options.executable_build_options
        # On one device, too: there are modules that do not compile without.
        build.use_spmd_partitioning = True
        build.use_shardy_partitioner = True
        keep_barriers(build, function.bytecode)
        if quick:
            compile_quickly(options)
        if self._devices[0].platform != "cpu" and len(self._opened.local) < self.mesh.size:
            tune_alone(options)
        loaded = load_or_compile(
            self._devices, function.bytecode, options, store, self._opened.threads
        )
        self._check_shardings(
            function, "argument", loaded.get_parameter_shardings(), function.arguments
        )
        self._check_shardings(function, "result", loaded.get_output_shardings(), function.results)
        return Executable(
            function.name, loaded, [self._layout(spec).wrap for spec in function.results]
        )

    def _check_shardings(
        self,
        function: StageFunction,
        what: str,
        protos: Sequence[Any] | None,
        specs: Sequence[TensorSpec],
    ) -> None:
        if protos is None or self.mesh.size == 1:  # one device: nothing to split
            return
        for number, (proto, spec) in enumerate(zip(protos, specs, strict=True)):
            expected = to_mhlo(spec.sharding, self.mesh)
            actual = xc.HloSharding.from_proto(proto)
            # XLA may call the terms of a sum replicas: their shards are the same.
            known = {expected, to_mhlo(spec.sharding.reduced(), self.mesh)}
            if not any(actual == xc.HloSharding.from_string(text) for text in known):
                raise ValueError(
                    f"function @{function.name}: {what} {number} compiled to sharding {actual}, "
                    f"expected {expected}"
                )

    def put(self, spec: TensorSpec, shards: Sequence[np.ndarray]) -> DeviceArray:
        """One array from the shards of all devices of this process, in mesh order. The caller gives
        the memory away."""
        layout = self._layout(spec)
        return xc.batched_device_put(
            layout.aval, layout.sharding, shards, self._opened.local, enable_x64=True
        )

    def adopt(self, spec: TensorSpec, give: Sequence[Callable[[int | None], Any]]) -> DeviceArray:
        """One array from memory of this process's devices, in mesh order. `give` makes the capsule
        of a device's shard for the stream that is to wait for its contents, or for none where the
        device has no streams."""
        layout, shards = self._layout(spec), []
        for device, make in zip(self._opened.local, give, strict=True):
            stream = (
                device.get_stream_for_external_ready_events() if device.platform != "cpu" else None
            )
            shards.append(_jax.dlpack_managed_tensor_to_buffer(make(stream), device, stream))
        return _jax.ArrayImpl(
            layout.aval, layout.sharding, shards, committed=True, _skip_checks=True
        )

    def device_shards(self, array: DeviceArray) -> Sequence[Any]:
        """The arrays of this process's devices, in mesh order, which may still be being
        computed. Any thread may ask."""
        # jaxlib makes the list when it is first asked for, and gives way to other threads in the
        # middle: two that send one array would see half of it, or all shards twice.
        with self._listing:
            shards: Sequence[Any] = array._arrays
        return shards

    def ordinals(self) -> list[int]:
        """The numbers of this process's devices on this machine, in mesh order."""
        local = self._opened.local
        return [
            number if each.local_hardware_id is None else each.local_hardware_id
            for number, each in enumerate(local)
        ]

    def copy(self, array: DeviceArray) -> DeviceArray:
        """The same contents in buffers of their own."""
        devices = xc.DeviceList(tuple(self._devices))
        always = xc.ArrayCopySemantics.ALWAYS_COPY
        return xc.batched_copy_array_to_devices_with_sharding(
            [array], [devices], [array.sharding], [always]
        )[0]

    def move(self, array: DeviceArray, spec: TensorSpec) -> DeviceArray:
        """The same contents in the memory that `spec` names, which is another one."""
        devices, sharding = xc.DeviceList(tuple(self._devices)), self._layout(spec).sharding
        # Never a view: of the two memories one may be an alias of the other, as on CPUs.
        always = xc.ArrayCopySemantics.ALWAYS_COPY
        return xc.batched_copy_array_to_devices_with_sharding(
            [array], [devices], [sharding], [always]
        )[0]

    def shards(self, array: DeviceArray) -> list[np.ndarray]:
        """Read-only views of the shards of this process's devices, in mesh order; waits until they
        are computed.

        While a view lives, donating the array copies it silently: drop views early.
        """
        return [np.asarray(shard) for shard in self.device_shards(array)]

    def live_bytes(self) -> int:
        """Bytes that a device of the mesh holds in arrays that are alive, whoever keeps them; what
        lies in the memory of its host is no device's."""
        arrays = self._devices[0].client.live_arrays()
        # Views of single shards are arrays, too, with another kind of sharding; GPUs of other
        # meshes share the client.
        live = [
            array for array in arrays if self._is_own(array.sharding) and not array.is_deleted()
        ]
        return sum(
            prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize for array in live
        )

    def _is_own(self, sharding: Any) -> bool:
        return (
            isinstance(sharding, NamedSharding)
            and sharding.mesh.devices.flat[0] == self._devices[0]
            and sharding.memory_kind != HOST_MEMORY
        )

    def fault_of(self, array: DeviceArray, spec: TensorSpec) -> str | None:
        """Why an executable must not be given `array` where it expects `spec`, or None."""
        layout = self._layout(spec)
        if array.is_deleted():
            return "its buffers are gone"
        if (array.shape, array.dtype, array.sharding) != (
            layout.aval.shape,
            layout.aval.dtype,
            layout.sharding,
        ):
            return f"expected {spec}, found {array.dtype}{list(array.shape)} with {array.sharding}"
        return None

    def _layout(self, spec: TensorSpec) -> _Layout:
        if spec not in self._layouts:
            # jax knows even tiles alone: to it, padding is a part of the array. XLA's executables
            # take and give shards, and these are the same.
            shape = spec.sharding.padded_shape(self.mesh, spec.shape)
            aval = core.ShapedArray(shape, numpy_dtype(spec.dtype))
            sharding = NamedSharding(
                self._jax_mesh,
                PartitionSpec(*(dim or None for dim in spec.sharding.dims)),
                memory_kind=HOST_MEMORY if spec.memory == "host" else None,
            )
            wrap = result_handler(aval, sharding)
            self._layouts[spec] = _Layout(aval, sharding, wrap)
        return self._layouts[spec]


def compile_quickly(options: Any, *, usual_kernels: bool = False) -> None:
    """Ask for machine code that is not optimized; the passes over HLO stay, and with them
    partitions and collectives. Unless kernels must be the usual ones, as where their bytes are
    read, XLA's older emitter makes them: it fuses a little less, and runs no MLIR passes."""
    debug = options.executable_build_options.debug_options
    debug.xla_backend_optimization_level = 0
    debug.xla_llvm_disable_expensive_passes = True
    # Among the debug options in C++, but not in their Python class.
    options.env_option_overrides = kernel_options(usual_kernels=usual_kernels)


def tune_alone(options: Any) -> None:
    """Let each process of a mesh of GPUs find the fastest kernels for itself. By default they share
    that out, and wait for each other: for ever, where one of them has the executable on disk."""
    options.env_option_overrides = [
        *options.env_option_overrides,
        ("xla_gpu_shard_autotuning", False),
    ]


def keep_barriers(build: Any, bytecode: bytes) -> None:
    """The CPU compiler may drop barriers before its last elimination of common subexpressions,
    which would merge what is computed again with the original. Where they stay, small loops must
    not become single kernels: one with a barrier does not compile, or ends the process."""
    if b"optimization_barrier" in bytecode and merges_behind_barriers():
        passes = "cse_barrier_expander,small-while-loop-hoisting"
        build.debug_options.xla_disable_hlo_passes = passes
