"""Run steps of modules on one accelerator as XLA compiles them, and write what they took: a line of
JSON each.

    python -m benchmarks.one_device.step hf_gpt2_small.train.mlirbc … [--seconds 2] [--hlo FOLDER]

A few modules at a time are compiled side by side; then one after the other runs alone. State is fed
back by donation. `step_seconds` is the time of a step when each waits for the one before (median,
and the smallest), of at least so many seconds and 15 steps; `bytes` what the executable holds and
what the allocator has seen at most until then, `kernels` the seconds of every operation of the
optimized module in one step, which XLA_FLAGS=--xla_gpu_enable_command_buffer= tells apart: a
recorded graph is one operation. What the compiler or the device refuses is said on standard
error."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
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

_WARM_UP, _FEWEST, _TRACED = 3, 15, 3
_BLOCK = 2**20  # random numbers that are drawn; larger arrays repeat them


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", type=Path, nargs="+", metavar="MODULE")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--together", type=int, default=4, help="modules compiled at a time")
    parser.add_argument("--hlo", type=Path, metavar="FOLDER", help="also write optimized modules")
    args = parser.parse_args(argv)
    for begin in range(0, len(args.modules), args.together):
        with ThreadPoolExecutor() as threads:
            paths = args.modules[begin : begin + args.together]
            compiled = list(threads.map(_compiled, paths))
        for path in paths:
            _print_row(path.name.removesuffix(".mlirbc"), compiled.pop(0), args)
    return 0


def _print_row(name: str, program: Compiled | Exception, args: argparse.Namespace) -> None:
    try:
        if isinstance(program, Exception):
            raise program
        if args.hlo is not None:
            text = program.loaded.hlo_modules()[0].to_string()
            (args.hlo / f"{name}.hlo.gz").write_bytes(gzip.compress(text.encode()))
        print(json.dumps({"model": name, **measured(program, args.seconds)}), flush=True)
    except Exception as error:
        print(f"{name}: {str(error).splitlines()[0][:300]}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Compiled:
    """`types` of the arguments; `pairs` has the result that takes the place of an argument."""

    loaded: Any
    types: list[tuple[tuple[int, ...], str]]
    pairs: dict[int, int]
    seconds: float


def _compiled(path: Path) -> Compiled | Exception:
    try:
        bytecode, types, pairs = _module(path)
        begin = perf_counter()
        options = get_compile_options(num_replicas=1, num_partitions=1)
        loaded = load_or_compile([jax.local_devices()[0]], bytecode, options, default_store())
        return Compiled(loaded, types, pairs, perf_counter() - begin)
    except Exception as error:
        return error


def measured(program: Compiled, seconds: float) -> dict[str, Any]:
    """Runs it for so many seconds."""
    device, loaded = jax.local_devices()[0], program.loaded
    arrays = _arguments(program.types)

    def step() -> None:
        results = loaded.execute_sharded(arrays).disassemble_into_single_device_arrays()
        for argument, result in program.pairs.items():
            arrays[argument] = results[result][0]
        for (last,) in results:
            last.block_until_ready()

    for _ in range(_WARM_UP):
        step()
    samples: list[float] = []
    while len(samples) < _FEWEST or sum(samples) < seconds:
        begin = perf_counter()
        step()
        samples.append(perf_counter() - begin)
    with kernels() as traced:
        for _ in range(_TRACED):
            step()
    stats, allocator = loaded.get_compiled_memory_stats(), device.memory_stats() or {}
    return {
        "device": device.device_kind,
        "step_seconds": {
            "median": median(samples),
            "min": min(samples),
            "max": max(samples),
            "first": median(samples[:_FEWEST]),
        },
        "steps": len(samples),
        "compile_seconds": program.seconds,
        "bytes": {
            "arguments": stats.argument_size_in_bytes,
            "results": stats.output_size_in_bytes,
            "aliased": stats.alias_size_in_bytes,
            "temporary": stats.temp_size_in_bytes,
            "allocator_peak": allocator.get("peak_bytes_in_use"),
        },
        "busy_seconds": traced.busy / _TRACED,
        "kernels": {
            op: [total / _TRACED, traced.runs[module, op] / _TRACED]
            for (module, op), total in sorted(traced.seconds.items(), key=lambda each: -each[1])
        },
    }


def _arguments(types: Sequence[tuple[tuple[int, ...], str]]) -> list[jax.Array]:
    """Drawn once for each type on the host, and copied on the device."""
    generator, drawn = np.random.default_rng(0), {}
    for type_ in dict.fromkeys(types):
        drawn[type_] = jax.device_put(_random(generator, *type_))
    return [jnp.array(drawn[type_], copy=True) for type_ in types]


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
