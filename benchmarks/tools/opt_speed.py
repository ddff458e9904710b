"""How long `shardopt-opt` takes on a large module, beside what jaxlib alone needs to parse, verify
and print it.

    python -m benchmarks.tools.opt_speed [--ops 50000] [--repeat 3]

The module is a chain of blocks as exported train steps have them: calls of private functions,
broadcasts of scalars, matrix products, reductions, reshapes that undo each other, dead code. Times
are the best of the repeats."""

from __future__ import annotations

import argparse
import io
import sys
from time import perf_counter

from rich.console import Console
from rich.table import Table

from shardopt.ir.context import make_context
from shardopt.ir.io import load_module, module_text
from shardopt.pipeline.manager import run_pipeline
from shardopt.pipeline.phases import phase_range

_HELPERS = """
func.func private @relu(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %b = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<64x128xf32>
  %r = stablehlo.maximum %x, %b : tensor<64x128xf32>
  return %r : tensor<64x128xf32>
}
"""
_BLOCK = """
  %c{n} = stablehlo.constant dense<0.5> : tensor<f32>
  %s{n} = stablehlo.broadcast_in_dim %c{n}, dims = [] : (tensor<f32>) -> tensor<64x128xf32>
  %m{n} = stablehlo.multiply %h{p}, %s{n} : tensor<64x128xf32>
  %d{n} = stablehlo.dot_general %m{n}, %w, contracting_dims = [1] x [0]
      : (tensor<64x128xf32>, tensor<128x128xf32>) -> tensor<64x128xf32>
  %r{n} = stablehlo.reshape %d{n} : (tensor<64x128xf32>) -> tensor<64x1x128xf32>
  %q{n} = stablehlo.reshape %r{n} : (tensor<64x1x128xf32>) -> tensor<64x128xf32>
  %z{n} = stablehlo.reduce(%q{n} init: %c{n}) applies stablehlo.add across dimensions = [1]
      : (tensor<64x128xf32>, tensor<f32>) -> tensor<64xf32>
  %e{n} = stablehlo.broadcast_in_dim %z{n}, dims = [0] : (tensor<64xf32>) -> tensor<64x128xf32>
  %a{n} = stablehlo.add %q{n}, %e{n} : tensor<64x128xf32>
  %u{n} = stablehlo.tanh %a{n} : tensor<64x128xf32>
  %h{n} = func.call @relu(%a{n}) : (tensor<64x128xf32>) -> tensor<64x128xf32>
"""
_OPS_A_BLOCK = 12  # the reduction's body counts, too


def make_module(num_ops: int) -> str:
    """Text of a module of about `num_ops` operations."""
    blocks = [_BLOCK.format(n=k + 1, p=k) for k in range(max(1, num_ops // _OPS_A_BLOCK))]
    head = (
        "func.func public @main(%h0: tensor<64x128xf32>, %w: tensor<128x128xf32>) -> "
        "tensor<64x128xf32> {"
    )
    return (
        f"{_HELPERS}\n{head}{''.join(blocks)}\n  return %h{len(blocks)} : tensor<64x128xf32>\n}}\n"
    )


def _native(text: str) -> dict[str, float]:
    """Seconds of jaxlib's own parser, verifier and printer."""
    from jaxlib.mlir import ir

    times: dict[str, float] = {}
    with make_context() as context:
        begin = perf_counter()
        module = ir.Module.parse(text, context)
        times["parse"] = perf_counter() - begin
        begin = perf_counter()
        module.operation.verify()
        times["verify"] = perf_counter() - begin
        begin = perf_counter()
        module.operation.print(file=io.StringIO(), assume_verified=True)
        times["print"] = perf_counter() - begin
    return times


def _ours(text: str) -> dict[str, float]:
    """Seconds of reading, each pass of the import phase with its verification, and writing."""
    times: dict[str, float] = {}
    with make_context() as context:
        begin = perf_counter()
        module = load_module(text.encode(), context)
        times["read"] = perf_counter() - begin
        for number, step in enumerate(
            run_pipeline(module, phase_range("import", "import")).steps, 1
        ):
            times[f"{number:2} {step.leaf.name}"] = step.time.wall
            times["verify each"] = times.get("verify each", 0.0) + step.verify_time.wall
        begin = perf_counter()
        module_text(module)
        times["write"] = perf_counter() - begin
    return times


def _least(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: min(run[name] for run in runs) for name in runs[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description="Time shardopt-opt on a large module.")
    parser.add_argument("--ops", type=int, default=50_000)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    text = make_module(args.ops)
    native = _least([_native(text) for _ in range(args.repeat)])
    ours = _least([_ours(text) for _ in range(args.repeat)])
    base = sum(native.values())
    table = Table(
        "step",
        "seconds",
        "of native",
        title=f"{args.ops} operations, {len(text) / 1e6:.1f} MB of text",
    )
    for name, seconds in [*((f"native {n}", s) for n, s in native.items()), *ours.items()]:
        table.add_row(name, f"{seconds:.3f}", f"{seconds / base:.2f}")
    table.add_row("all of ours", f"{sum(ours.values()):.3f}", f"{sum(ours.values()) / base:.2f}")
    Console(width=100).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
