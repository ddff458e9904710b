"""Seconds of one step of a chain: the slope between a short and a long program, and what a call
takes on top."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np
from jaxlib.mlir import ir

from shardopt.dialect.dtypes import numpy_dtype, numpy_name
from shardopt.ir.context import make_context
from shardopt.runtime.devices.replicas import Replicas, Results
from shardopt.runtime.profiling.chains import Chain

# Steps of the programs: differences of 4 and of 40, in which the time of a call falls out.
SHORT, LONG, LONGEST = 1, 5, 41
# Below this difference between the two programs the clock and the threads decide: a longer one is
# taken.
_CLEAR_SECONDS = 200e-6


@dataclass(frozen=True)
class Effort:
    """How long to measure: samples of each program, and the seconds after which no more than the
    fewest are taken."""

    fewest: int = 5
    most: int = 60
    seconds: float = 0.4


@dataclass(frozen=True)
class Slope:
    """Seconds of one step (the smallest samples), and the relative distance of the median from
    them."""

    seconds: float
    spread: float
    samples: int


class MergedError(Exception):
    """The compiler did not leave a chain as it was."""


def measure_chain(chain: Chain, replicas: Replicas, effort: Effort) -> Slope:
    """Raises MergedError when the compiled programs do not hold the steps that are to be timed."""
    rng = np.random.default_rng(0)
    # Entries of a matrix such that products keep the size of what goes in.
    values = [rng.standard_normal(shape) / np.sqrt(shape[-1]) for shape in chain.arguments]
    arrays = [replicas.put(value.astype(numpy_dtype(numpy_name(chain.dtype)))) for value in values]
    short = _Timed(chain, SHORT, replicas, arrays)
    for steps in (LONG, LONGEST):
        long = _Timed(chain, steps, replicas, arrays)
        _check(chain, short, long, steps - SHORT)
        slope = slope_of(short.sample, long.sample, steps - SHORT, effort)
        if slope.seconds * (steps - SHORT) >= _CLEAR_SECONDS:
            break
    return slope


def slope_of(
    short: Callable[[], float], long: Callable[[], float], steps: int, effort: Effort
) -> Slope:
    """Samples of both in turn, so that what else the machine does strikes both."""
    # Not counted: first runs pay for memory and for threads.
    for sample in (short, long):
        sample()
    few: list[float] = []
    many: list[float] = []
    begin = perf_counter()
    while len(few) < effort.fewest or (
        len(few) < effort.most and perf_counter() - begin < effort.seconds
    ):
        few.append(short())
        many.append(long())
    # The smallest, as whatever else the machine does only adds.
    return Slope((min(many) - min(few)) / steps, median(many) / min(many) - 1, len(few))


def bytecode_of(text: str) -> bytes:
    with make_context() as context:
        buffer = io.BytesIO()
        ir.Module.parse(text, context).operation.write_bytecode(buffer)
        return buffer.getvalue()


def programs(chain: Chain) -> Iterator[tuple[bytes, Results]]:
    """What `measure_chain` may run, as `Replicas.compile` takes it."""
    return (_program(chain, steps) for steps in (SHORT, LONG, LONGEST))


def _program(chain: Chain, steps: int) -> tuple[bytes, Results]:
    return bytecode_of(chain.text(steps)), [(chain.arguments[0], numpy_name(chain.dtype))]


class _Timed:
    def __init__(
        self, chain: Chain, steps: int, replicas: Replicas, arrays: Sequence[object]
    ) -> None:
        self._executable, hlo = replicas.compile(*_program(chain, steps))
        self._arrays = arrays
        self.operations, self.kernels = chain.count(hlo)

    def sample(self) -> float:
        begin = perf_counter()
        _, token = self._executable(self._arrays)
        token.block_until_ready()
        return perf_counter() - begin


def _check(chain: Chain, short: _Timed, long: _Timed, steps: int) -> None:
    operations, kernels = long.operations - short.operations, long.kernels - short.kernels
    if operations < steps or kernels < steps:
        raise MergedError(
            f"expected {steps} more {chain.opcodes[0]} and as many more kernels in the longer "
            "program, "
            f"found {operations} and {kernels}"
        )
