"""Run one program of the table in one process: one line of JSON for each setting, as it ends.

python -m benchmarks.programs.one "Optax/MultiSteps" [--settings 1x1,2x1,2xB] [--limit 180]
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.programs.program import Program, Trial, installed_programs

CLUSTER = "cpu-test:1x4"
# Numbers of stages and of microbatches; B is what the program says.
SETTINGS = ("1x1", "2x1", "2xB")
# An array may differ by ten times what the library's own execution without jit differs by; one
# that differs by more than `_NO_DIGITS` there is rounding and nothing else.
_ROUNDINGS, _NO_DIGITS = 10.0, 1e-2


@dataclass(frozen=True)
class Outcome:
    """How a program ended in one setting: "works" or "wrong" with the largest difference to
    `jax.jit`, "refused" with the message of a UserError, "failed" with any other error, or
    "not run" where the library's own jit ends in an error.

    `arrays_of_rounding` have no digit that jit and the same steps without jit agree on, and are not
    compared."""

    setting: str
    kind: str
    difference: float = 0.0
    message: str = ""
    arrays_of_rounding: int = 0


def outcome(program: Program, setting: str, expected: list[Any]) -> Outcome:
    """Plan and run a program, and compare all that three steps return and change."""
    import shardopt

    trial = program.make()
    stages, microbatches = setting.split("x")
    donated = range(len(trial.state)) if trial.after == "replaced" else ()
    try:
        planned = shardopt.parallelize(
            trial.step,
            cluster=CLUSTER,
            stages=int(stages),
            microbatches=trial.microbatches if microbatches == "B" else int(microbatches),
            donate_argnums=tuple(donated),
            quick_compile=True,
            **trial.options,
            **trial.planning,
        )
        with planned:
            results = run(trial, planned)
    except shardopt.UserError as error:
        return Outcome(setting, "refused", message=str(error))
    except Exception as error:
        return Outcome(setting, "failed", message=f"{type(error).__name__}: {error}")
    differences = largest_differences(results, expected)
    if all(each <= trial.tolerance for each in differences):
        return Outcome(setting, "works", max(differences, default=0.0))
    noise = rounding(program, expected)
    kept = [each for each, own in zip(differences, noise, strict=True) if own <= _NO_DIGITS]
    is_equal = all(
        each <= max(trial.tolerance, _ROUNDINGS * own)
        for each, own in zip(differences, noise, strict=True)
        if own <= _NO_DIGITS
    )
    without = len(differences) - len(kept)
    return Outcome(
        setting,
        "works" if is_equal else "wrong",
        max(kept, default=0.0),
        arrays_of_rounding=without,
    )


def rounding(program: Program, expected: list[Any]) -> list[float]:
    """How far the order of roundings alone moves each array: the difference between the library's
    own jit and the same steps without jit.

    Where a gradient is zero but for its rounding, as that of the bias of keys in attention, Adam
    makes whole steps of it."""
    import jax

    trial = program.make()
    with jax.disable_jit():
        return largest_differences(run(trial, trial.step), expected)


def run(trial: Trial, step: Any) -> list[Any]:
    """The results of every step and the state after it, as arrays of NumPy."""
    state, seen = trial.state, []
    for batch in trial.batches:
        results = step(*state, *batch, **trial.keywords)
        if trial.after == "replaced":
            state = results[: len(state)]
        returned = results if trial.after == "mutated" else trial.arrays(results)
        seen.append(_arrays((returned, trial.arrays(state))))
    return seen


def _arrays(tree: Any) -> list[np.ndarray]:
    import jax

    def plain(leaf: Any) -> np.ndarray:
        if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf)
        return array.astype(np.float32) if array.dtype.name == "bfloat16" else array.copy()

    return [plain(leaf) for leaf in jax.tree.leaves(tree)]


def largest_differences(results: list[Any], expected: list[Any]) -> list[float]:
    """Of each array over all steps, the largest difference of two elements by the largest element;
    infinity for other shapes, dtypes, integers or numbers that are none."""
    worst = [0.0] * len(expected[0])
    for step, other in zip(results, expected, strict=True):
        if len(step) != len(other):
            return [float("inf")] * len(worst)
        worst = [max(pair) for pair in zip(worst, map(_difference, step, other), strict=True)]
    return worst


def _difference(result: np.ndarray, expected: np.ndarray) -> float:
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return float("inf")
    if not np.issubdtype(expected.dtype, np.inexact):
        return 0.0 if np.array_equal(result, expected) else float("inf")
    if not np.array_equal(np.isfinite(result), np.isfinite(expected)):
        return float("inf")
    finite = np.isfinite(expected)
    if not finite.any():
        return 0.0
    largest = np.abs(expected[finite]).max()
    return float(np.abs(result[finite] - expected[finite]).max() / (largest or 1.0))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", metavar="LIBRARY/FEATURE")
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--limit", type=int, help="seconds of the processor, then the process ends")
    args = parser.parse_args(argv)
    if args.limit is not None:
        # Not of the clock: on a busy machine the same programs come to an end.
        resource.setrlimit(resource.RLIMIT_CPU, (args.limit, args.limit))
    by_name = {f"{each.library}/{each.feature}": each for each in installed_programs()}
    if args.program not in by_name:
        parser.error(f"unknown program '{args.program}'")
    program = by_name[args.program]
    try:
        trial = program.make()
        expected = run(trial, trial.jit(trial.step, **trial.options))
    except Exception as error:
        why = f"it does not run without shardopt: {type(error).__name__}: {error}"
        for setting in args.settings.split(","):
            print(json.dumps(asdict(Outcome(setting, "not run", message=why))), flush=True)
        return 0
    for setting in args.settings.split(","):
        print(json.dumps(asdict(outcome(program, setting, expected))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
