"""The numbers that `exported_example.mlir` stands for, in numpy, and how to load it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from jaxlib.mlir import ir

from shardopt.ir.context import make_context
from shardopt.runtime.driver import prepare
from shardopt.runtime.program.instructions import Program

TEXT = (Path(__file__).parent / "exported_example.mlir").read_text()
MICROBATCHES = 4


def load(text: str, custom_calls: str = "") -> Program:
    with make_context():
        return prepare(ir.Module.parse(text), custom_calls)


@cache
def example(schedule: str = "1f1b") -> Program:
    return load(TEXT.replace('name = "1f1b"', f'name = "{schedule}"'))


def inputs(seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = [(8, 8), (8, 4), (16, 8), (16, 4)]
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


def expected_step(
    w0: np.ndarray, w1: np.ndarray, x: np.ndarray, t: np.ndarray, microbatches: int = MICROBATCHES
) -> list[np.ndarray]:
    """One step: new w0, new w1, loss."""
    g0, g1, loss = np.zeros_like(w0), np.zeros_like(w1), np.float32(0)
    for xs, ts in zip(np.split(x, microbatches), np.split(t, microbatches), strict=True):
        h = np.tanh(xs @ w0)
        e = h @ w1 - ts
        loss += (e * e).sum()
        g1 += h.T @ (2 * e)
        g0 += xs.T @ ((2 * e) @ w1.T * (1 - h * h))
    return [w0 - np.float32(0.01) / (1 + loss) * g0, w1 - np.float32(0.01) * g1, np.array(loss)]
