"""What XLA makes of a module for host devices, for those who want to know and not to run it."""

from __future__ import annotations

from typing import Any

from jax.extend.backend import get_compile_options
from jaxlib import lapack

from shardopt.runtime.devices.clients import unshared_client
from shardopt.runtime.devices.xla import compile_quickly, keep_barriers


def compiled_text(bytecode: bytes, devices: int, *, shardy: bool) -> str:
    """The optimized HLO of a module for so many host devices, as the partitioner Shardy or GSPMD
    makes it.

    Compiled as fast as XLA can, and never run: for those who want to know what it would exchange.
    """
    compiled = _compiled_for_host(bytecode, devices, shardy, usual_kernels=False)
    return str(compiled.hlo_modules()[0].to_string())


def compiled_bytes(bytecode: bytes, devices: int, *, shardy: bool) -> int:
    """Bytes that one of so many host devices holds while the compiled module runs: arguments,
    results, temporaries."""
    stats = _compiled_for_host(bytecode, devices, shardy).get_compiled_memory_stats()
    arrays = stats.argument_size_in_bytes + stats.output_size_in_bytes
    # An argument that a result writes over counts among both.
    return int(arrays + stats.temp_size_in_bytes - stats.alias_size_in_bytes)


def compiled_costs(bytecode: bytes) -> dict[str, float]:
    """XLA's cost analysis of a module compiled for one host device; "flops", "bytes accessed", …,
    bodies once."""
    return dict(_compiled_for_host(bytecode, 1, shardy=False).cost_analysis())


def _compiled_for_host(
    bytecode: bytes, devices: int, shardy: bool, *, usual_kernels: bool = True
) -> Any:
    # Its custom calls crash the process otherwise.
    if b"lapack" in bytecode:
        lapack._lapack.initialize()
    client = unshared_client(devices)
    of_client = client.devices()
    options = get_compile_options(
        num_replicas=1,
        num_partitions=devices,
        device_assignment=[[device.id for device in of_client]],
    )
    build = options.executable_build_options
    build.use_spmd_partitioning = True
    build.use_shardy_partitioner = shardy
    compile_quickly(options, usual_kernels=usual_kernels)
    keep_barriers(build, bytecode)
    return client.compile_and_load(bytecode, tuple(of_client), options)
