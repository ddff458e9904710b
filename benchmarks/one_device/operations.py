"""Seconds of single operations on one accelerator, by shape and element type: a line of JSON each.

    python -m benchmarks.one_device.operations [--only dot] > h100.operations.jsonl

An operation is a function under `jax.jit`; its seconds are those of the kernels that the profiler
saw, the mean of some calls. Inputs are random. `flops` counts products only, `bytes` operands and
results once."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.one_device.kernels import kernels

_CALLS = 6
_TOGETHER = 64


@dataclass(frozen=True)
class Operation:
    """`name` says what it is, `shapes` are those of its operands."""

    name: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    function: Callable[..., Any]
    flops: float = 0.0

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} " + " ".join(
            "x".join(map(str, shape)) for shape in self.shapes
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="operations whose name contains this")
    parser.add_argument("--skip", default="", metavar="NAME", help="all operations of this name")
    args = parser.parse_args(argv)
    chosen = [each for each in operations() if args.only in each.name and each.name != args.skip]
    for begin in range(0, len(chosen), _TOGETHER):
        for row in measured(chosen[begin : begin + _TOGETHER]):
            print(json.dumps(row), flush=True)
    return 0


def measured(chosen: Sequence[Operation]) -> Iterator[dict[str, Any]]:
    """Compiled at the same time, run one after the other under one trace. What the compiler or the
    device refuses is said on standard error."""
    with ThreadPoolExecutor() as threads:
        compiled = list(threads.map(_compiled, range(len(chosen)), chosen))
    moved: dict[int, int] = {}
    with kernels() as traced:
        for number, (operation, executable) in enumerate(zip(chosen, compiled, strict=True)):
            try:
                if isinstance(executable, Exception):
                    raise executable
                operands = _operands(operation)
                result = jax.block_until_ready(executable(*operands))
                for _ in range(_CALLS - 1):
                    jax.block_until_ready(executable(*operands))
                moved[number] = sum(each.nbytes for each in (*operands, *jax.tree.leaves(result)))
            except Exception as error:
                print(f"{operation}: {str(error).splitlines()[0][:200]}", file=sys.stderr)
    for number in moved:
        operation, module = chosen[number], f"jit_operation_{number}"
        yield {
            "name": operation.name,
            "dtype": operation.dtype,
            "shapes": operation.shapes,
            "flops": operation.flops,
            "bytes": moved[number],
            "seconds": traced.of_module(module) / _CALLS,
            "kernels": sum(runs for (name, _), runs in traced.runs.items() if name == module)
            / _CALLS,
        }


def _compiled(number: int, operation: Operation) -> Any:
    def run(*operands: Any) -> Any:
        return operation.function(*operands)

    run.__name__ = run.__qualname__ = f"operation_{number}"
    try:
        types = [jax.ShapeDtypeStruct(shape, operation.dtype) for shape in operation.shapes]
        return jax.jit(run).lower(*types).compile()
    except Exception as error:
        return error


def _operands(operation: Operation) -> list[jax.Array]:
    key = jax.random.key(0)
    return [jax.random.normal(key, shape, operation.dtype) for shape in operation.shapes]


def operations() -> Iterator[Operation]:
    yield from _products()
    yield from _batched()
    yield from _convolutions()
    yield from _memory_bound()


def _products() -> Iterator[Operation]:
    square = [(n, n, n) for n in (128, 256, 512, 1024, 2048, 4096, 8192, 16384)]
    thin = [
        (8192, n, k)
        for n in (64, 256, 768, 1024, 2304, 3072, 4096, 5120)
        for k in (64, 768, 1024, 4096)
    ]
    short = [(m, 4096, 4096) for m in (1, 16, 64, 128, 256, 512, 1024, 2048, 2176)]
    deep = [
        (768, 3072, 8192),
        (1024, 1024, 8192),
        (1024, 4096, 16384),
        (50257, 768, 8192),
        (4096, 4096, 65536),
    ]
    wide = [(8192, 50257, 768), (8192, 51200, 1024), (8192, 32000, 4096), (4096, 30522, 768)]
    for dtype in ("bfloat16", "float16", "float32"):
        for m, n, k in (*square, *thin, *short, *deep, *wide):
            yield Operation("dot", dtype, ((m, k), (k, n)), jnp.matmul, 2.0 * m * n * k)
    for m, n, k in ((4096, 4096, 4096), (8192, 3072, 768)):
        yield Operation(
            "dot, weights' gradient", "bfloat16", ((k, m), (k, n)), _transposed, 2.0 * m * n * k
        )
    yield Operation(
        "dot, highest", "float32", ((4096, 4096), (4096, 4096)), _highest, 2.0 * 4096**3
    )


def _highest(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision="highest")


def _transposed(a: Any, b: Any) -> Any:
    return jnp.einsum("km,kn->mn", a, b)


def _scores(q: Any, k: Any) -> Any:
    return jnp.einsum("bqd,bkd->bqk", q, k)


def _values(p: Any, v: Any) -> Any:
    return jnp.einsum("bqk,bkd->bqd", p, v)


def _batched() -> Iterator[Operation]:
    for dtype in ("bfloat16", "float32"):
        for batch, length, size in (
            (96, 512, 64),
            (96, 1024, 64),
            (128, 1024, 64),
            (64, 2048, 128),
            (16, 4096, 128),
        ):
            flops = 2.0 * batch * length * length * size
            yield Operation("scores", dtype, ((batch, length, size),) * 2, _scores, flops)
            yield Operation(
                "values", dtype, ((batch, length, length), (batch, length, size)), _values, flops
            )


def _convolutions() -> Iterator[Operation]:
    sizes = (
        (224, 3, 64, 7, 2),
        (56, 64, 64, 1, 1),
        (56, 64, 64, 3, 1),
        (56, 64, 256, 1, 1),
        (28, 128, 128, 3, 1),
        (14, 256, 256, 3, 1),
        (14, 1024, 256, 1, 1),
        (7, 512, 512, 3, 1),
        (56, 320, 320, 3, 1),
        (28, 640, 640, 3, 1),
    )
    for dtype in ("float32", "bfloat16"):
        for layout in ("NHWC", "NCHW"):
            for size, inputs, outputs, kernel, stride in sizes:
                image = (32, size, size, inputs) if layout == "NHWC" else (32, inputs, size, size)
                flops = 2.0 * 32 * (size // stride) ** 2 * kernel**2 * inputs * outputs
                shapes = (image, (kernel, kernel, inputs, outputs))
                yield Operation(
                    f"convolution {layout}", dtype, shapes, _convolution(layout, stride), flops
                )
                if layout == "NHWC":
                    yield Operation(
                        "convolution, both", dtype, shapes, _gradients(stride), 3 * flops
                    )


def _convolution(layout: str, stride: int) -> Callable[..., Any]:
    def run(image: Any, weights: Any) -> Any:
        dims = (layout, "HWIO", layout)
        return jax.lax.conv_general_dilated(
            image, weights, (stride, stride), "SAME", dimension_numbers=dims
        )

    return run


def _gradients(stride: int) -> Callable[..., Any]:
    """Forward, and the gradients of the image and of the weights."""
    return jax.grad(
        lambda x, w: (_convolution("NHWC", stride)(x, w) ** 2).astype(jnp.float32).sum(),
        argnums=(0, 1),
    )


def _memory_bound() -> Iterator[Operation]:
    for dtype in ("float32", "bfloat16"):
        for size in (2**10, 2**14, 2**16, 2**18, 2**20, 2**22, 2**24, 2**26, 2**28):
            yield Operation("add", dtype, ((size,), (size,)), jnp.add)
            yield Operation("tanh", dtype, ((size,),), jnp.tanh)
            yield Operation("sum", dtype, ((size,),), jnp.sum)
        for rows, row in ((8192, 768), (8192, 4096), (98304, 1024), (131072, 2048), (8192, 50257)):
            shapes = ((rows, row),)
            yield Operation("sum of rows", dtype, shapes, lambda x: x.sum(-1))
            yield Operation("sum of columns", dtype, shapes, lambda x: x.sum(0))
            yield Operation("softmax", dtype, shapes, lambda x: jax.nn.softmax(x, -1))
            yield Operation("softmax, gradient", dtype, shapes, _softmax_gradient)
            yield Operation("norm", dtype, shapes, _norm)
            yield Operation(
                "norm, gradient", dtype, shapes, jax.grad(lambda x: (_norm(x) ** 3).sum())
            )
            yield Operation("gelu", dtype, shapes, jax.nn.gelu)
            yield Operation("transpose", dtype, shapes, lambda x: x.T)
        for batch, length, heads, size in (
            (8, 1024, 12, 64),
            (8, 1024, 16, 64),
            (4, 2048, 16, 128),
            (8, 512, 12, 64),
        ):
            shapes = ((batch, length, heads, size),) * 3
            flops = 4.0 * batch * heads * length**2 * size
            yield Operation("attention", dtype, shapes, _attention, flops)
            both = jax.grad(
                lambda *x: (_attention(*x) ** 2).astype(jnp.float32).sum(), argnums=(0, 1, 2)
            )
            yield Operation("attention, both", dtype, shapes, both, 3 * flops)
            yield Operation(
                "transpose of heads", dtype, shapes[:1], lambda x: x.transpose(0, 2, 1, 3)
            )
    for size in (2**16, 2**20, 2**24, 2**27):
        yield Operation("adam", "float32", ((size,),) * 4, _adam)
    for rows, row in ((50257, 768), (51200, 4096), (32000, 1024)):
        yield Operation("gather", "float32", ((rows, row), (8192,)), _gather)
        yield Operation("scatter", "float32", ((rows, row), (8192, row), (8192,)), _scatter)


def _softmax_gradient(x: Any) -> Any:
    return jax.grad(lambda y: (jax.nn.softmax(y, -1) ** 2).astype(jnp.float32).sum())(x)


def _norm(x: Any) -> Any:
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    variance = ((wide - mean) ** 2).mean(-1, keepdims=True)
    return ((wide - mean) * jax.lax.rsqrt(variance + 1e-5)).astype(x.dtype)


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e4).astype(jnp.float32), axis=-1).astype(
        q.dtype
    )
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def _adam(parameter: Any, gradient: Any, mean: Any, square: Any) -> Any:
    mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
    return parameter - 1e-3 * mean / (jnp.sqrt(jnp.abs(square)) + 1e-8), mean, square


def _rows(numbers: Any, rows: int) -> Any:
    return (jnp.abs(numbers) * 1e4).astype(jnp.int32) % rows


def _gather(table: Any, numbers: Any) -> Any:
    return table[_rows(numbers, table.shape[0])]


def _scatter(table: Any, updates: Any, numbers: Any) -> Any:
    return jnp.zeros_like(table).at[_rows(numbers, table.shape[0])].add(updates)


if __name__ == "__main__":
    sys.exit(main())
