"""Programs with `jax.checkpoint`: predicted peaks against compiled ones, and results against
`jax.jit`.

    python -m benchmarks.cost.checkpoint_peaks
    python -m benchmarks.cost.checkpoint_peaks --results

The first plans each variant of `checkpoint_models.py` for one host device and compiles it: bytes by
the account, bytes of the compiled program (arguments + results + temporaries - aliases), and by how
much the former are off. The second runs three steps of each in two stages and four microbatches, at
small sizes, and prints the largest difference to `jax.jit`; from 1e-5 on, the exit code is 1."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import shardopt
from benchmarks.cost.checkpoint_models import (
    GPT_POLICIES,
    LOSSES,
    batch,
    gpt_step,
    init_params,
    make_step,
)
from benchmarks.cost.memory_accounting import peaks
from examples.gpt import Config

CLUSTER = "cpu-test:1x2"
STEPS = 3
TOLERANCE = 1e-5
# Rows, length and width of what `LOSSES` read, and a GPT with its rows.
_LARGE, _SMALL = (16, 64, 128), (8, 4, 8)
_LARGE_GPT, _SMALL_GPT = (Config(4, 64, 4, 64, 64), 16), (Config(2, 16, 2, 32, 8), 8)


@dataclass(frozen=True)
class Program:
    """`step(state, *arguments)` gives the next state and a loss; the first argument is the
    batch."""

    name: str
    state: Any
    arguments: tuple[jax.Array, ...]
    step: Callable[..., tuple[Any, jax.Array]]

    def artifact(self) -> bytes:
        jitted = jax.jit(self.step, donate_argnums=(0,), keep_unused=True)
        exported = jax.export.export(jitted)(self.state, *self.arguments)
        return bytes(exported.mlir_module_serialized)


def programs(*, are_small: bool) -> Iterator[Program]:
    config, rows = _SMALL_GPT if are_small else _LARGE_GPT
    for is_scanned in (False, True):
        for policy in ("none", *GPT_POLICIES):
            for prevent_cse in (True, False) if policy != "none" else (True,):
                state, tokens, step = gpt_step(
                    config, rows, policy, is_scanned=is_scanned, prevent_cse=prevent_cse
                )
                words = ("scanned" * is_scanned, policy, "prevent_cse=False" * (not prevent_cse))
                yield Program(" ".join(("gpt", *filter(None, words))), state, (tokens,), step)
    shape = _SMALL if are_small else _LARGE
    for name, loss in LOSSES.items():
        arguments = (batch(*shape), jax.random.PRNGKey(3))
        yield Program(name, init_params(shape[-1]), arguments, make_step(loss))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of programs; by default all")
    parser.add_argument("--results", action="store_true", help="compare results, not bytes")
    args = parser.parse_args(argv)
    chosen = [
        each
        for each in programs(are_small=args.results)
        if not args.names or each.name in args.names
    ]
    return _compare_results(chosen) if args.results else _compare_bytes(chosen)


def _compare_bytes(chosen: Sequence[Program]) -> int:
    table = Table("program", "predicted MB", "compiled MB", "error")
    for program in chosen:
        cost, compiled, _ = peaks(program.artifact(), "1", CLUSTER)
        megabytes = (f"{size / 1e6:.2f}" for size in (cost.peak_bytes, compiled))
        table.add_row(program.name, *megabytes, f"{cost.peak_bytes / compiled - 1:+.1%}")
    Console(width=100).print(table)
    return 0


def _compare_results(chosen: Sequence[Program]) -> int:
    table, largest = Table("program", "largest difference to jax.jit"), 0.0
    for program in chosen:
        plan = shardopt.parallelize(
            cluster=CLUSTER, stages=2, microbatches=4, donate_argnums=(0,), batch_argnums=(1,)
        )
        pairs = zip(
            _outputs(program, plan(program.step)),
            _outputs(program, jax.jit(program.step)),
            strict=True,
        )
        difference = max(float(np.max(np.abs(ours - theirs))) for ours, theirs in pairs)
        largest = max(largest, difference)
        table.add_row(program.name, f"{difference:.1e}")
    Console(width=100).print(table)
    return int(largest >= TOLERANCE)


def _outputs(program: Program, step: Callable[..., tuple[Any, jax.Array]]) -> list[np.ndarray]:
    """State and loss after every step."""
    state, outputs = program.state, list[np.ndarray]()
    for _ in range(STEPS):
        state, loss = step(state, *program.arguments)
        outputs += [np.asarray(leaf) for leaf in jax.tree.leaves((state, loss))]
    return outputs


if __name__ == "__main__":
    sys.exit(main())
