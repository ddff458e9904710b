"""What a plan file holds, as values: layers, stages, shardings. Every part may be missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, get_args

from shardopt.hardware.cluster import Cluster, Submesh
from shardopt.options.names import Recompute

VERSION = 2
PREDICTED_SECONDS = ("step_seconds", "formula_seconds", "formula_bound")
RECOMPUTE: tuple[str, ...] = get_args(Recompute)

Runs = tuple[
    tuple[int, int], ...
]  # (layer, how many operations in a row belong to it); layer -1: every reader's own


@dataclass(frozen=True)
class Again:
    """A value that is computed again for its last readers (`Rematerialized`); `strategies` are
    texts."""

    tensor: int
    chain: tuple[int, ...]
    strategies: tuple[str, ...]
    readers: tuple[int, ...]
    gap: tuple[int, int]
    extended: tuple[int, ...]
    scratch_bytes: int
    seconds: float


@dataclass(frozen=True)
class Fresh:
    """A copy of a tensor in another sharding that operation `op` makes anew."""

    tensor: int
    sharding: str
    op: int


@dataclass(frozen=True)
class GivenShardings:
    """Of the values of one stage. `inputs`: shardings of what no operation of the stage makes,
    `argN` for arguments of the model. `ops`: of every operation in order; without it the solver
    decides about them."""

    inputs: Mapping[str, str] = field(default_factory=dict)
    ops: tuple[str, ...] = ()
    again: tuple[Again, ...] = ()
    fresh: tuple[Fresh, ...] = ()


@dataclass(frozen=True)
class GivenStage:
    """One stage; `layers` are the first and the last, `group` is the name of a host group."""

    layers: tuple[int, int] | None = None
    group: str | None = None
    submesh: tuple[int, int] | None = None
    logical_shape: tuple[int, int] | None = None
    devices: tuple[int, ...] | None = None
    recompute: str | None = None
    intra_op: str | None = None
    shardings: GivenShardings | None = None
    predicted: Mapping[str, Any] | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether nothing is left to choose: which layers, and on what."""
        return (
            self.layers is not None and self.submesh is not None and self.logical_shape is not None
        )

    def place(self) -> Submesh | None:
        return None if self.submesh is None else Submesh(*self.submesh)


@dataclass(frozen=True)
class GivenLayers:
    """How many layers; where each but the first begins; or the layer of every operation and
    argument."""

    count: int | None = None
    starts: tuple[str, ...] = ()
    body: Runs | None = None
    prologue: Runs = ()
    epilogue: Runs = ()
    arguments: Runs = ()


@dataclass(frozen=True)
class Model:
    """What the plan was made for: `fingerprint` is a hash of its operations without their
    locations."""

    fingerprint: str
    name: str = ""


@dataclass(frozen=True)
class PlanFile:
    """A whole file. `options` are those of `shardopt plan`, `cluster` is what they name, spelt
    out."""

    version: int
    made_by: Mapping[str, str] = field(default_factory=dict)
    model: Model | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    cluster: Cluster | None = None
    layers: GivenLayers | None = None
    stages: tuple[GivenStage, ...] = ()
    predicted: Mapping[str, Any] | None = None

    def decisions(self) -> str:
        """A hash of what the stage phase decides and builds on: layers, stages, options."""
        stages = [replace(stage, shardings=None, predicted=None) for stage in self.stages]
        options = sorted((name, self.options.get(name)) for name in ("microbatches", "schedule"))
        groups = self.cluster.groups if self.cluster is not None else ()
        kernels = [group.device.kernels for group in groups if group.device.kernels is not None]
        return sha256(
            repr((self.layers, stages, options, self.cluster, *kernels)).encode()
        ).hexdigest()[:16]

    def own_prediction(self) -> dict[str, Any] | None:
        """What the stage phase predicted of these very decisions: `schedule` and seconds; None
        after an edit."""
        found = dict(self.predicted or {})
        step, formula, bound = (found.get(name) for name in PREDICTED_SECONDS)
        readable = (
            isinstance(step, float)
            and isinstance(formula, float)
            and isinstance(bound, float | None)
        )
        if (
            not readable
            or found.get("decisions") != self.decisions()
            or not isinstance(found.get("planned_for"), str)
        ):
            return None
        return {
            "schedule": found["planned_for"],
            **{name: found.get(name) for name in PREDICTED_SECONDS},
        }


def runs_of(layers: Iterable[int]) -> list[list[int]]:
    """Layers of operations in order, as `[layer, count]`."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][0] == layer:
            runs[-1][1] += 1
        else:
            runs.append([layer, 1])
    return runs


def layers_in(runs: Runs) -> tuple[int, ...]:
    """The other way."""
    return tuple(layer for layer, count in runs for _ in range(count))
