"""Run a module's step on one accelerator as XLA compiles it, and write what it took: a line of
JSON.

    python -m benchmarks.one_device.step hf_gpt2_small.train.mlirbc --steps 20 [--hlo FILE.gz]

State is fed back by donation. `step_seconds` is the time of a step when each waits for the one
before (median, and the smallest), `bytes` what the executable holds and what the allocator saw at
most, `kernels` the seconds of every operation of the optimized module in one step."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import jax
import ml_dtypes  # noqa: F401  element types of numpy
import numpy as np
from jax.extend.backend import get_compile_options

from benchmarks.one_device.kernels import kernels
from shardopt.caching.store import default_store
from shardopt.dialect.donation import read_donation
from shardopt.dialect.dtypes import numpy_dtype, numpy_name
from shardopt.forms.exported_form import MAIN, find_function, function_type, static_shape
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.runtime.devices.executables import load_or_compile

_WARM_UP, _TRACED = 3, 3
_BLOCK = 2**20  # random numbers that are drawn; larger arrays repeat them


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("module", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--compile-only",
        action="store_true",
        help="leave the executable in the cache (SHARDOPT_CACHE)",
    )
    parser.add_argument(
        "--hlo", type=Path, metavar="FILE.gz", help="also write the optimized module"
    )
    args = parser.parse_args(argv)
    print(
        json.dumps({"model": args.module.name.removesuffix(".mlirbc"), **measured(args)}),
        flush=True,
    )
    return 0


def measured(args: argparse.Namespace) -> dict[str, Any]:
    device = jax.local_devices()[0]
    bytecode, types, pairs = _module(args.module)
    begin = perf_counter()
    options = get_compile_options(num_replicas=1, num_partitions=1)
    loaded = load_or_compile([device], bytecode, options, default_store())
    compiled = perf_counter() - begin
    if args.hlo is not None:
        args.hlo.write_bytes(gzip.compress(loaded.hlo_modules()[0].to_string().encode()))
    if args.compile_only:
        return {"compile_seconds": compiled}
    generator = np.random.default_rng(0)
    arrays = [jax.device_put(_random(generator, *type_), device) for type_ in types]

    def step() -> None:
        results = loaded.execute_sharded(arrays).disassemble_into_single_device_arrays()
        for argument, result in pairs.items():
            arrays[argument] = results[result][0]
        for (last,) in results:
            last.block_until_ready()

    for _ in range(_WARM_UP):
        step()
    samples = []
    for _ in range(args.steps):
        begin = perf_counter()
        step()
        samples.append(perf_counter() - begin)
    with kernels() as traced:
        for _ in range(_TRACED):
            step()
    stats, allocator = loaded.get_compiled_memory_stats(), device.memory_stats() or {}
    return {
        "device": device.device_kind,
        "step_seconds": {"median": median(samples), "min": min(samples), "max": max(samples)},
        "compile_seconds": compiled,
        "bytes": {
            "arguments": stats.argument_size_in_bytes,
            "results": stats.output_size_in_bytes,
            "aliased": stats.alias_size_in_bytes,
            "temporary": stats.temp_size_in_bytes,
            "allocator_peak": allocator.get("peak_bytes_in_use"),
        },
        "busy_seconds": traced.busy / _TRACED,
        "kernels": {
            op: [seconds / _TRACED, traced.runs[module, op] / _TRACED]
            for (module, op), seconds in sorted(traced.seconds.items(), key=lambda each: -each[1])
        },
    }


def _module(path: Path) -> tuple[bytes, list[tuple[tuple[int, ...], str]], dict[int, int]]:
    """Bytecode, the types of the arguments, and argument -> result that replaces it."""
    import io

    from jaxlib.mlir import ir

    with make_context() as context:
        module = load_module(path, context)
        main_ = find_function(ir.SymbolTable(module.operation), MAIN)
        types = [
            (static_shape(t), numpy_name(str(t.element_type))) for t in function_type(main_).inputs
        ]
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
        return buffer.getvalue(), types, read_donation(main_)


def _random(generator: np.random.Generator, shape: tuple[int, ...], name: str) -> np.ndarray:
    dtype = numpy_dtype(name)
    if dtype.kind in "iu":
        return generator.integers(0, 100, shape).astype(dtype)
    if dtype.kind == "b":
        return np.ones(shape, dtype)
    # As variances have no sign.
    block = 0.02 * np.abs(generator.standard_normal(_BLOCK, np.float32))
    return np.resize(block.astype(dtype), shape)


if __name__ == "__main__":
    sys.exit(main())
