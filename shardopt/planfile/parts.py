"""What a plan file holds, as values: layers, stages, shardings. Every part may be missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from json import dumps
from typing import Any

from shardopt.hardware.cluster import Cluster, Submesh
from shardopt.hardware.cluster_file import describe

VERSION = 3
PREDICTED_SECONDS = ("step_seconds", "formula_seconds", "formula_bound")

# (layer, how many operations in a row belong to it); layer -1: every reader repeats them
Runs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class PlannedRemat:
    """A value that is rematerialized for its last readers (`Rematerialized`): the operations of
    `chain` run a second time, with `strategies`, which are texts."""

    tensor: int
    chain: tuple[int, ...]
    strategies: tuple[str, ...]
    readers: tuple[int, ...]
    gap: tuple[int, int]
    extended: tuple[int, ...]
    scratch_bytes: int
    seconds: float


@dataclass(frozen=True)
class PlannedCopy:
    """A copy of a tensor in another sharding that operation `op` makes for itself, though others
    have made it before."""

    tensor: int
    sharding: str
    op: int


@dataclass(frozen=True)
class PlannedShardings:
    """Of the values of one stage. `inputs`: shardings of what no operation of the stage makes,
    `argN` for arguments of the model. `ops`: of every operation in order; without it the solver
    decides about them."""

    inputs: Mapping[str, str] = field(default_factory=dict)
    ops: tuple[str, ...] = ()
    rematerialized: tuple[PlannedRemat, ...] = ()
    copies: tuple[PlannedCopy, ...] = ()


@dataclass(frozen=True)
class PlannedStage:
    """One stage; `layers` are the first and the last, `group` is the name of a host group."""

    layers: tuple[int, int] | None = None
    group: str | None = None
    submesh: tuple[int, int] | None = None
    logical_shape: tuple[int, ...] | None = None
    devices: tuple[int, ...] | None = None
    recompute: str | None = None
    # Files of version 2 hold hashes of the text without it.
    offload: str | None = field(default=None, repr=False)
    intra_op: str | None = None
    shardings: PlannedShardings | None = None
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
class PlannedLayers:
    """How many layers; where each but the first begins; or the layer of every operation and
    argument."""

    count: int | None = None
    starts: tuple[str, ...] = ()
    body: Runs | None = None
    prologue: Runs = ()
    epilogue: Runs = ()
    arguments: Runs = ()


@dataclass(frozen=True)
class PlannedModel:
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
    model: PlannedModel | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    cluster: Cluster | None = None
    layers: PlannedLayers | None = None
    stages: tuple[PlannedStage, ...] = ()
    predicted: Mapping[str, Any] | None = None

    def decisions(self) -> str:
        """A hash of what the stage phase decides and builds on: layers, stages, options, cluster.

        It is one of texts, not of Python values: names of classes may change, and fields that a
        cluster file leaves out may be added, without a file losing its prediction.
        """
        stages = [replace(stage, shardings=None, predicted=None) for stage in self.stages]
        parts = {
            "layers": asdict(self.layers) if self.layers is not None else None,
            "stages": [_texts(stage) for stage in stages],
            "options": {name: self.options.get(name) for name in ("microbatches", "schedule")},
            "cluster": describe(self.cluster) if self.cluster is not None else None,
        }
        return sha256(dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def stage_phase_prediction(self) -> dict[str, Any] | None:
        """What the stage phase predicted of these very decisions: `schedule` and seconds; None
        after an edit."""
        figures = dict(self.predicted or {})
        step, formula, bound = (figures.get(name) for name in PREDICTED_SECONDS)
        readable = (
            isinstance(step, float)
            and isinstance(formula, float)
            and isinstance(bound, float | None)
        )
        if (
            not readable
            or figures.get("decisions") != self.decisions()
            or not isinstance(figures.get("planned_for"), str)
        ):
            return None
        return {
            "schedule": figures["planned_for"],
            **{name: figures.get(name) for name in PREDICTED_SECONDS},
        }


def _texts(stage: PlannedStage) -> dict[str, Any]:
    """The fields of a stage; without what is offloaded where nothing is, as before there was such a
    field."""
    fields = asdict(stage)
    if stage.offload in (None, "none"):
        del fields["offload"]
    return fields


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
