"""Does XLA exchange what was planned, for random programs under random plans?

    python -m benchmarks.cost.random_agreement [--programs 500] [--first 0] [--mesh 4] [--mesh 2x2]
    python -m benchmarks.cost.random_agreement --context [--programs 500] [--first 0] [--mesh 2x4]

Programs of products, elementwise operations, transposes, sums, slices, paddings, reversals and
concatenations of arrays with even and uneven extents. Every leaf is an argument, every value that
nothing reads a result, and nothing is broadcast: XLA can neither fold, drop nor copy any of it, and
every planned collective survives. With `--context`, programs of attention whose sequence is split,
in turn by each method of context parallelism. One line for each that differs. Exit code 1 if one
does."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cost.random_attention import random_attention
from benchmarks.cost.xla_agreement_case import RANDOM, Case, check
from shardopt.cost.traffic import (
    REDUCED,
    Traffic,
    TrafficDifference,
    comparable,
    compare,
    total,
)

_EXTENTS = (8, 10, 12, 16)  # 10 and 12 are uneven on some meshes
_INPUTS, _OPS = 3, 8
_NEW = ("tanh", "exp", "add", "multiply", "transpose", "product", "sum", "slice", "pad", "reverse",
        "concatenate")  # fmt: skip
Step = Callable[[list[jax.Array]], jax.Array]


def random_program(seed: int) -> tuple[Callable[..., tuple[jax.Array, ...]], list[np.ndarray]]:
    """A function of matrices, and matrices for it."""
    rng = random.Random(seed)
    inputs = [np.ones([rng.choice(_EXTENTS) for _ in range(2)], np.float32) for _ in range(_INPUTS)]
    shapes, steps, read = [each.shape for each in inputs], list[Step](), set[int]()
    while len(steps) < _OPS:
        kind, first = rng.choice(_NEW), rng.randrange(len(shapes))
        second = rng.randrange(len(shapes))
        step = _step(rng, kind, shapes, first, second)
        if step is not None:
            steps.append(step)
            read |= {first, second} if kind in _OF_TWO else {first}
            values = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
            shapes.append(jax.eval_shape(step, values).shape)

    def program(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        values = list(arrays)
        for step in steps:
            values.append(step(values))
        return tuple(v for k, v in enumerate(values) if k >= _INPUTS and k not in read)

    return program, inputs


_OF_TWO = frozenset({"add", "multiply", "product", "concatenate"})


def _step(
    rng: random.Random, kind: str, shapes: list[tuple[int, ...]], first: int, second: int
) -> Step | None:
    """An operation on values by number; None where their shapes do not fit it."""
    columns, other = shapes[first][1], shapes[second]
    start, dim = rng.randint(1, 3), rng.randrange(2)
    if kind == "product":
        fits = columns == other[0]
    elif kind == "concatenate":
        fits = shapes[first][1 - dim] == other[1 - dim] and shapes[first][dim] + other[dim] <= 32
    elif kind in _OF_TWO:
        fits = shapes[first] == other
    else:
        fits = kind != "slice" or shapes[first][dim] > 7
    if not fits:
        return None
    one: dict[str, Callable[[jax.Array], jax.Array]] = {
        "tanh": jnp.tanh,
        "exp": jnp.exp,
        "transpose": jnp.transpose,
        "sum": lambda x: jnp.concatenate([x.sum(axis=dim, keepdims=True), x], dim),
        "slice": lambda x: jax.lax.slice_in_dim(x, start, x.shape[dim], axis=dim),
        "pad": lambda x: jnp.pad(x, [(start, 0) if d == dim else (0, 0) for d in range(2)]),
        "reverse": lambda x: jnp.flip(x, dim),
    }
    two: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
        "add": jnp.add,
        "multiply": jnp.multiply,
        "product": jnp.matmul,
        "concatenate": lambda x, y: jnp.concatenate([x, y], dim),
    }
    if kind in two:
        return lambda values: two[kind](values[first], values[second])
    return lambda values: one[kind](values[first])


def random_case(seed: int, meshes: tuple[str, ...]) -> tuple[bytes, Case]:
    """A program under a plan that takes any strategy of any operation."""
    program, inputs = random_program(seed)
    text = str(jax.jit(program, keep_unused=True).lower(*inputs).compiler_ir("stablehlo"))
    return text.encode(), Case(meshes[seed % len(meshes)], f"{RANDOM}{seed}")


def context_case(seed: int, meshes: tuple[str, ...]) -> tuple[bytes, Case]:
    """Attention under one of the methods of context parallelism; each of them meets each mesh."""
    program, inputs = random_attention(seed)
    text = str(jax.jit(program, keep_unused=True).lower(*inputs).compiler_ir("stablehlo"))
    mesh, method = meshes[seed % len(meshes)], _METHODS[seed // len(meshes) % len(_METHODS)]
    if method == "ring" and mesh.endswith("x2"):
        method = _METHODS[0]  # XLA unrolls the loop of a ring of two devices
    return text.encode(), Case(mesh, method)


_METHODS = ("context-gather", "ulysses", "ring")
NewCase = Callable[[int, tuple[str, ...]], tuple[bytes, Case]]


def differences(
    seeds: Iterable[int], meshes: tuple[str, ...], new_case: NewCase = random_case
) -> tuple[int, int]:
    """How many programs were planned and compiled, and how many of them differ."""
    count = different = 0
    for seed in seeds:
        artifact, case = new_case(seed, meshes)
        [outcome] = check(artifact, case, ("sdy",))
        rows = _differing(outcome.predicted, outcome.emitted)
        # A sum along one axis that is reshaped and then summed along another: two of the plan, and
        # read as one along both from what is compiled.
        if rows and not _differing(*map(_by_axis, (outcome.predicted, outcome.emitted))):
            rows = []
        count, different = count + 1, different + bool(rows)
        if rows:
            where = f"seed {seed}, {case.plan} on {case.mesh}"
            print(f"{where}: {'; '.join(map(str, rows))}", flush=True)
    return count, different


def _differing(predicted: Iterable[Traffic], emitted: Iterable[Traffic]) -> list[TrafficDifference]:
    rows = compare(predicted, emitted)
    return [row for row in rows if row.excess_bytes or row.predicted_tensors != row.found_tensors]


def _by_axis(items: Iterable[Traffic]) -> tuple[Traffic, ...]:
    """All-reduces along several axes as one along each."""
    split = [
        [replace(item, axes=(axis,)) for axis in item.axes] if item.kind == REDUCED else [item]
        for item in comparable(items)
    ]
    return total(chain.from_iterable(split))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--mesh", action="append")
    parser.add_argument("--context", action="store_true", help="attention with a split sequence")
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.programs)
    new_case = context_case if args.context else random_case
    count, different = differences(seeds, tuple(args.mesh or ("4", "2x2")), new_case)
    print(f"{count - different} of {count} programs exchange what was planned")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
