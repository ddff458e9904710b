"""Inputs of a run that the user does not give."""

from __future__ import annotations

import numpy as np

from shardopt.runtime.program.instructions import Program

# Floats small and positive: valid for weights and for second moments of an optimizer alike.
_SCALE = 0.1


def random_inputs(program: Program, seed: int) -> list[np.ndarray]:
    """One array an argument: floats in [0, 0.1), integers 0 or 1 (token ids, labels and masks of
    any model)."""
    generator = np.random.default_rng(seed)
    arrays = []
    for argument in program.signature.arguments:
        shape, dtype = argument.shape, argument.numpy_dtype
        values = (
            generator.integers(0, 2, shape)
            if dtype.kind in "biu"
            else _SCALE * generator.random(shape)
        )
        arrays.append(np.asarray(values).astype(dtype))
    return arrays
