"""What was measured on devices of one kind, as the cost model asks for it.

A profile is a set of measurements, each a curve of seconds by size for one kind of work. Where
there is a curve it takes the place of the formula; where there is none the formula stands.
`docs/guide/profile.md` has kinds and file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from shardopt.hardware.curves import Curve
from shardopt.support.kept_hash import keeps_hash

# Work on one device, by size; all devices of the host do the same meanwhile.
MATMUL = "matmul"  # FLOPs of one product of two matrices
BATCH_MATMUL = "batch_matmul"  # FLOPs of many products of small matrices
CONVOLUTION = "convolution"  # FLOPs
ELEMENTWISE = "elementwise"  # bytes read and written
TRANSCENDENTAL = "transcendental"  # bytes read and written
REDUCTION = "reduction"  # bytes read and written
SCATTER = "scatter"  # bytes of the updates
COMPUTE_KINDS = (MATMUL, BATCH_MATMUL, CONVOLUTION, ELEMENTWISE, TRANSCENDENTAL, REDUCTION, SCATTER)

# Work of groups of devices; all groups do the same meanwhile. Sizes are the `bytes` of
# `shardopt.cost.collectives`.
COLLECTIVE_KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute")
SEND = "send"  # bytes of one message between meshes; a group sends as many at once
# Arguments and results of one call of a compiled function on a group of devices.
DISPATCH = "dispatch"
KINDS = (*COMPUTE_KINDS, *COLLECTIVE_KINDS, SEND, DISPATCH)

INTRA_HOST, INTER_HOST = "intra_host", "inter_host"
PLACEMENTS = (INTRA_HOST, INTER_HOST)


@dataclass(frozen=True)
class Measurement:
    """One curve, by its points. `dtype` is a family of `Device.peak_flops`, or "" where it does not
    matter; `devices` the size of a group; `spread` the relative distance of the median from the
    smallest sample of each point. Raises ValueError for points that make no curve."""

    kind: str
    sizes: tuple[float, ...]
    seconds: tuple[float, ...]
    dtype: str = ""
    devices: int = 1
    placement: str = INTRA_HOST
    spread: tuple[float, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        assert self.curve  # checks the points

    @cached_property
    def curve(self) -> Curve:
        return Curve.through(self.sizes, self.seconds)

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.kind, self.dtype, self.devices, self.placement


@keeps_hash
@dataclass(frozen=True)
class Profile:
    """Measurements on devices named `device`, `devices` of them on one host and at work at once.

    `speeds[k - 1]` is the speed of a device while k of a host's are at work, relative to all of
    them: 1 at the end, and more before where devices share cores or memory. `origin` says how it
    came about: versions, date, repeats."""

    device: str
    devices: int
    measurements: tuple[Measurement, ...]
    speeds: tuple[float, ...] = (1.0,)
    origin: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if len(self._curves) != len(self.measurements):
            keys = [each.key for each in self.measurements]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"expected one measurement of each kind, found two of {twice}")
        if len(self.speeds) != self.devices or not all(speed > 0 for speed in self.speeds):
            raise ValueError(f"expected {self.devices} positive speeds, found {list(self.speeds)}")

    @cached_property
    def _curves(self) -> dict[tuple[str, str, int, str], Curve]:
        return {each.key: each.curve for each in self.measurements}

    def curve(
        self, kind: str, dtype: str = "", devices: int = 1, placement: str = INTRA_HOST
    ) -> Curve | None:
        return self._curves.get((kind, dtype, devices, placement))

    def rate(self, kind: str, dtype: str) -> float | None:
        """Size over seconds of the largest work of a kind on one device; None where there is
        none."""
        key = kind, dtype, 1, INTRA_HOST
        rates = (each.sizes[-1] / each.seconds[-1] for each in self.measurements if each.key == key)
        return next(rates, None)

    def nearest(self, kind: str, devices: int, placement: str = INTRA_HOST) -> Curve | None:
        """The curve of the largest group of at most `devices`, or of the smallest where all are
        larger."""
        sizes = sorted(
            at for name, _, at, place in self._curves if name == kind and place == placement
        )
        if not sizes:
            return None
        return self.curve(
            kind, "", max((at for at in sizes if at <= devices), default=sizes[0]), placement
        )

    def speed(self, busy: int) -> float:
        """Of a device while `busy` of its host's are at work, relative to all of them."""
        return self.speeds[min(max(busy, 1), len(self.speeds)) - 1]
