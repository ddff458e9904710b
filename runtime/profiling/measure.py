"""Measure the devices at hand into a profile: which work, in which sizes, and what is done with a
measurement that makes no sense."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import exp, log
from typing import Any

from shardopt.cost.collectives import COLLECTIVES
from shardopt.hardware import profile as kinds
from shardopt.hardware.curves import rising
from shardopt.hardware.profile import Measurement, Profile
from shardopt.runtime.devices.clients import threads_of_worker, unshared_devices, with_threads
from shardopt.runtime.devices.compiled import compiled_text
from shardopt.runtime.devices.replicas import Replicas
from shardopt.runtime.profiling.chains import COMPUTE, Chain
from shardopt.runtime.profiling.collective_chains import SCATTERING, collective
from shardopt.runtime.profiling.messages import measure_call, measure_message
from shardopt.runtime.profiling.slopes import (
    Effort,
    MergedError,
    Slope,
    bytecode_of,
    measure_chain,
    programs,
)
from shardopt.support.progress import progress

# What each kind of work is sized by, from small to large: edges of matrices, batches, image edges,
# elements, rows.
_SIZES = {
    kinds.MATMUL: tuple(2**k for k in range(4, 15)),
    kinds.BATCH_MATMUL: tuple(4**k for k in range(1, 10)),
    kinds.CONVOLUTION: tuple(2**k for k in range(2, 11)),
    kinds.ELEMENTWISE: tuple(4**k for k in range(4, 15)),
    kinds.TRANSCENDENTAL: tuple(4**k for k in range(4, 15)),
    kinds.REDUCTION: tuple(4**k for k in range(1, 12)),
    kinds.SCATTER: tuple(4**k for k in range(1, 10)),
}
_BYTES = tuple(2**k for k in range(8, 29, 3))
_BUFFERS = (2, 16, 64, 256)
# A point that is so much dearer by its size than the one before is measured twice: what else the
# machine does strikes long samples most.
_DEARER = 2.0
# Sizes whose programs are compiled side by side, not all of which are reached: as many as there are
# cores for the three programs of each.
_TOGETHER = (os.cpu_count() or 1) // 3
# What tells how much faster a device is while others rest.
_ALONE = (COMPUTE[kinds.MATMUL](256, "f32"), COMPUTE[kinds.ELEMENTWISE](2**18, "f32"))


@dataclass(frozen=True)
class MeasurementRequest:
    """What to measure. Sizes of a kind grow, `stride` of the list at a time, until one operation
    would take `longest_seconds`."""

    device: str
    dtypes: tuple[str, ...] = ("f32",)
    effort: Effort = field(default_factory=Effort)
    longest_seconds: float = 0.005
    stride: int = 1
    kinds: tuple[str, ...] = kinds.KINDS

    @staticmethod
    def quick(device: str, dtypes: tuple[str, ...]) -> MeasurementRequest:
        return MeasurementRequest(
            device, dtypes, Effort(fewest=3, most=10, seconds=0.05), longest_seconds=0.002, stride=2
        )


_Measure = Callable[[int], tuple[float, Slope]]


@dataclass(frozen=True)
class _Job:
    """One curve to be. `measure` gives the size on the curve and the slope for each of `steps`;
    `compile` makes ready what it runs for all of them."""

    kind: str
    steps: tuple[int, ...]
    measure: _Measure
    compile: Callable[[Sequence[int]], None] = lambda _: None
    dtype: str = ""
    devices: int = 1

    def __str__(self) -> str:
        return f"{self.kind} {self.dtype}".strip() + (
            f" of {self.devices}" if self.devices > 1 else ""
        )


def measure_profile(
    devices: Sequence[Any],
    request: MeasurementRequest,
    origin: dict[str, str],
    *,
    remark: Callable[[str], None] | None = None,
) -> Profile:
    """The profile of these devices; `remark` is told what was left out."""
    say = remark or (lambda _: None)
    jobs = tuple(job for job in _jobs(devices, request) if job.kind in request.kinds)
    curves = []
    for number, job in enumerate(jobs):
        progress(number, len(jobs) + 1, str(job))
        curves += [each for each in [_run(job, request, say)] if each is not None]
    progress(len(jobs), len(jobs) + 1, "devices alone")
    speeds = _speeds(devices, request, say)
    return Profile(request.device, len(devices), tuple(curves), speeds, origin)


def _jobs(devices: Sequence[Any], request: MeasurementRequest) -> Iterator[_Job]:
    everyone, host = Replicas(devices), devices[0].platform == "cpu"
    for dtype in request.dtypes:
        for kind, make in COMPUTE.items():
            chains = _Chains(partial(make, dtype=dtype), everyone, request.effort)
            yield _Job(kind, _SIZES[kind], chains.measure, chains.compile, dtype)
    groups = [size for size in range(2, len(devices) + 1) if len(devices) % size == 0]
    scatters = bool(groups) and _makes_reduce_scatters(devices)
    for group in groups:
        for kind in COLLECTIVES:
            make = partial(collective, kind, group=group, devices=len(devices), scatters=scatters)
            chains = _Chains(make, everyone, request.effort)
            yield _Job(kind, _BYTES, chains.measure, chains.compile, devices=group)
    for group in (1, *groups):
        call = partial(measure_call, replicas=Replicas(devices[:group]), effort=request.effort)
        yield _Job(kinds.DISPATCH, _BUFFERS, _of_size(call), devices=group)
        message = partial(measure_message, devices=group, effort=request.effort)
        if host:  # the runtime's transport for meshes in one process
            yield _Job(kinds.SEND, _BYTES, _of_size(message), devices=group)


@dataclass(frozen=True)
class _Chains:
    make: Callable[[int], Chain]
    replicas: Replicas
    effort: Effort

    def compile(self, steps: Sequence[int]) -> None:
        self.replicas.compile_together(
            program for step in steps for program in programs(self.make(step))
        )

    def measure(self, step: int) -> tuple[float, Slope]:
        chain = self.make(step)
        return chain.size, measure_chain(chain, self.replicas, self.effort)


def _of_size(slope: Callable[[int], Slope]) -> _Measure:
    return lambda size: (float(size), slope(size))


def _run(
    job: _Job, request: MeasurementRequest, remark: Callable[[str], None]
) -> Measurement | None:
    points: list[tuple[float, Slope]] = []
    steps = job.steps[:: request.stride]
    for number, step in enumerate(steps):
        if _TOGETHER and number % _TOGETHER == 0:
            job.compile(steps[number : number + _TOGETHER])
        try:
            size, slope = job.measure(step)
        except MergedError as error:
            remark(f"{job}, size {step}: left out: {error}")
            continue
        if slope.seconds <= 0:
            remark(
                f"{job}, size {step}: left out: the longer program took less time than the shorter "
                "one"
            )
            continue
        if points and slope.seconds / size > _DEARER * points[-1][1].seconds / points[-1][0]:
            second = job.measure(step)[1]
            slope = min(
                (each for each in (slope, second) if each.seconds > 0),
                key=lambda each: each.seconds,
            )
        growth = size / points[-1][0] if points else 1.0
        points.append((size, slope))
        if slope.seconds * growth > request.longest_seconds:  # as the next one would, at the least
            break
    if not points:
        remark(f"{job}: nothing could be measured, the formula stands")
        return None
    return Measurement(
        job.kind,
        tuple(size for size, _ in points),
        tuple(float(f"{value:.4g}") for value in rising([slope.seconds for _, slope in points])),
        job.dtype,
        job.devices,
        spread=tuple(round(slope.spread, 3) for _, slope in points),
    )


def _speeds(
    devices: Sequence[Any], request: MeasurementRequest, remark: Callable[[str], None]
) -> tuple[float, ...]:
    """Speed of a device while 1, 2, … are at work, relative to all of them: the geometric mean over
    kinds of work."""
    counts = sorted({1, *(2**k for k in range(1, len(devices).bit_length())), len(devices)})
    effort = replace(
        request.effort, most=2 * request.effort.most, seconds=4 * request.effort.seconds
    )
    seconds = []
    for count in counts:
        replicas = Replicas(_like_a_mesh(devices, count))
        slopes = [measure_chain(chain, replicas, effort).seconds for chain in _ALONE]
        if min(slopes) <= 0:
            remark("devices alone: no positive slope, taken as no faster than together")
            return (1.0,) * len(devices)
        seconds.append(exp(sum(map(log, slopes)) / len(slopes)))
    risen = rising(seconds)
    at = {count: risen[-1] / value for count, value in zip(counts, risen, strict=True)}
    # Between the counts that were measured, the time of a device grows evenly.
    return tuple(round(_between(at, busy), 3) for busy in range(1, len(devices) + 1))


def _like_a_mesh(devices: Sequence[Any], count: int) -> list[Any]:
    """So many devices as a run has them whose other meshes have the rest: on the host of a client
    with the threads of such a mesh."""
    if devices[0].platform != "cpu":
        return list(devices[:count])
    with with_threads(threads_of_worker(count, count, len(devices))):
        return unshared_devices(count).local


def _between(speeds: dict[int, float], busy: int) -> float:
    below = max(count for count in speeds if count <= busy)
    above = min(count for count in speeds if count >= busy)
    share = (busy - below) / (above - below) if above > below else 0.0
    return 1 / ((1 - share) / speeds[below] + share / speeds[above])


def _makes_reduce_scatters(devices: Sequence[Any]) -> bool:
    """Whether the partitioner takes a sum in parts by a reduce-scatter; on the host it all-reduces
    and slices."""
    if devices[0].platform == "cpu":
        return "reduce-scatter(" in compiled_text(bytecode_of(SCATTERING), 2, shardy=True)
    return True
