"""The plan file, `plan.json`: what was decided, so that it can be applied again, edited, or given by hand in parts.

Every part may be missing, and what is missing is planned. `docs/plan-file.md` describes the fields; `schema()` is the
JSON schema in `shardopt/schemas`. This module reads the file; what the parts say of each other and of the cluster is
checked by `shardopt.cost.plan_checks`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from shardopt.cost.cluster import Cluster, Submesh
from shardopt.cost.cluster_file import DESCRIPTION
from shardopt.cost.documents import (
    COUNT,
    INDEX,
    NOT_NEGATIVE,
    Field,
    Items,
    Nullable,
    Number,
    Record,
    Row,
    Scalar,
    Schema,
    Table,
    Text,
    mistakes_of,
    parse_text,
    read_text,
)
from shardopt.cost.errors import UserError

VERSION = 2
PREDICTED_SECONDS = ("step_seconds", "formula_seconds", "formula_bound")
RECOMPUTE = ("none", "layer", "full")

Runs = tuple[tuple[int, int], ...]  # (layer, how many operations in a row belong to it); layer -1: every reader's own


@dataclass(frozen=True)
class Again:
    """A value that is computed again for its last readers (`Rematerialized`); `strategies` are texts."""

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
    """Of the values of one stage. `inputs`: shardings of what no operation of the stage makes, `argN` for arguments of
    the model. `ops`: of every operation in order; without it the solver decides about them."""

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
        return self.layers is not None and self.submesh is not None and self.logical_shape is not None

    def place(self) -> Submesh | None:
        return None if self.submesh is None else Submesh(*self.submesh)


@dataclass(frozen=True)
class GivenLayers:
    """How many layers; where each but the first begins; or the layer of every operation and argument."""

    count: int | None = None
    starts: tuple[str, ...] = ()
    body: Runs | None = None
    prologue: Runs = ()
    epilogue: Runs = ()
    arguments: Runs = ()


@dataclass(frozen=True)
class Model:
    """What the plan was made for: `fingerprint` is a hash of its operations without their locations."""

    fingerprint: str
    name: str = ""


@dataclass(frozen=True)
class PlanFile:
    """A whole file. `options` are those of `shardopt plan`, `cluster` is what they name, spelt out."""

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
        return sha256(repr((self.layers, stages, options, self.cluster)).encode()).hexdigest()[:16]

    def own_prediction(self) -> dict[str, Any] | None:
        """What the stage phase predicted of these very decisions: `schedule` and seconds; None after an edit."""
        found = dict(self.predicted or {})
        step, formula, bound = (found.get(name) for name in PREDICTED_SECONDS)
        readable = isinstance(step, float) and isinstance(formula, float) and isinstance(bound, float | None)
        if not readable or found.get("decisions") != self.decisions() or not isinstance(found.get("planned_for"), str):
            return None
        return {"schedule": found["planned_for"], **{name: found.get(name) for name in PREDICTED_SECONDS}}


# ---- readers ----


@dataclass(frozen=True)
class Sizes:
    """`HxD`, read into a pair."""

    example: str

    def read(self, value: Any, path: str, mistakes: list[str]) -> tuple[int, int] | None:
        match = re.fullmatch(r"([1-9][0-9]{0,8})x([1-9][0-9]{0,8})", value) if isinstance(value, str) else None
        if match is None:
            mistakes.append(f"field '{path}': expected sizes such as '{self.example}', got {value!r:.80}")
            return None
        return int(match[1]), int(match[2])

    def schema(self) -> Schema:
        return {"type": "string", "pattern": "^[1-9][0-9]{0,8}x[1-9][0-9]{0,8}$"}


class _Version:
    def read(self, value: Any, path: str, mistakes: list[str]) -> int | None:
        if value != VERSION or isinstance(value, bool):
            mistakes.append(f"expected field '{path}' to be {VERSION}, found {value!r:.80}")
        return VERSION

    def schema(self) -> Schema:
        return {"const": VERSION}


_PAIR = Items(INDEX, 2, 2)
_RUNS = Items(Row((Number(at_least=-1, whole=True), COUNT)))
_INDICES = Items(INDEX)

_AGAIN = Record(
    Again,
    {
        "tensor": Field(INDEX, "the value that is computed again"),
        "chain": Field(_INDICES, "the operations that make it"),
        "strategies": Field(Items(Text()), "their shardings"),
        "readers": Field(_INDICES, "operations that read the new value"),
        "gap": Field(_PAIR, "positions between which nobody holds it"),
        "extended": Field(_INDICES, "operands that live longer for it"),
        "scratch_bytes": Field(INDEX),
        "seconds": Field(NOT_NEGATIVE),
    },
)
_FRESH = Record(Fresh, {"tensor": Field(INDEX), "sharding": Field(Text()), "op": Field(INDEX)})
_SHARDINGS = Record(
    GivenShardings,
    {
        "inputs": Field(Table(Text()), "sharding of each argument (argN) and arriving value, such as [{x}, {}]", {}),
        "ops": Field(Items(Text()), "operation, shardings of operands -> of results; none: the solver decides", ()),
        "again": Field(Items(_AGAIN), "values that are computed again to save memory", ()),
        "fresh": Field(Items(_FRESH), "copies that are made anew to save memory", ()),
    },
)
_STAGE = Record(
    GivenStage,
    {
        "layers": Field(Nullable(_PAIR), "first and last layer", None),
        "group": Field(Nullable(Text()), "name of the host group", None),
        "submesh": Field(Nullable(Sizes("1x4")), "hosts x devices per host", None),
        "logical_shape": Field(Nullable(Sizes("2x2")), "sizes of the mesh axes x and y", None),
        "devices": Field(Nullable(Items(INDEX, 1)), "device ids in row-major order of the axes", None),
        "recompute": Field(Nullable(Text(choices=RECOMPUTE)), "what the backward computes again", None),
        "intra_op": Field(Nullable(Text()), "how the stage is sharded: ilp, or a preset", None),
        "shardings": Field(Nullable(_SHARDINGS), "of the values of the stage", None),
        "predicted": Field(Nullable(Table(Scalar())), "figures of one step; for readers only", None),
    },
)
_LAYERS = Record(
    GivenLayers,
    {
        "count": Field(Nullable(COUNT), "number of layers", None),
        "starts": Field(
            Items(Text("an operation number or a pattern of locations")),
            "forward operations that begin a layer, by number in the body or pattern of their location",
            (),
        ),
        "body": Field(Nullable(_RUNS), "[layer, operations in a row] for the operations of a microbatch", None),
        "prologue": Field(_RUNS, "the same for those before the loop", ()),
        "epilogue": Field(_RUNS, "the same for those after the loop", ()),
        "arguments": Field(_RUNS, "the same for the arguments of the model", ()),
    },
)
PLAN = Record(
    PlanFile,
    {
        "version": Field(_Version(), "of this format"),
        "made_by": Field(Table(Text(may_be_empty=True)), "versions that made the plan; for readers only", {}),
        "model": Field(
            Nullable(
                Record(
                    Model,
                    {
                        "fingerprint": Field(Text(), "hash of the operations of the model"),
                        "name": Field(Text(may_be_empty=True), "what messages called it", ""),
                    },
                )
            ),
            "the model that the plan was made for",
            None,
        ),
        "options": Field(Table(Scalar()), "options of `shardopt plan`", {}),
        "cluster": Field(Nullable(DESCRIPTION), "the cluster, as in a cluster file", None),
        "layers": Field(Nullable(_LAYERS), "which operation belongs to which layer", None),
        "stages": Field(Items(_STAGE), "the stages in pipeline order", ()),
        "predicted": Field(Nullable(Table(Scalar())), "figures of one step; for readers only", None),
    },
)


def schema() -> Schema:
    """The JSON schema of a plan file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "shardopt plan", **PLAN.schema()}


def read_plan_file(value: Any) -> tuple[PlanFile, tuple[str, ...]]:
    """The plan and what is wrong with the fields; where something is, the plan must not be used."""
    version = value.get("version") if isinstance(value, dict) else None
    if isinstance(value, dict) and version != VERSION:  # whatever else another version says means other things
        return PlanFile(VERSION), (f"expected field 'version' to be {VERSION}, found {version!r:.80}",)
    return mistakes_of(PLAN, value)


def load_values(path: str) -> Any:
    """The values of a plan file, or of `plan.json` in a plan directory. Raises UserError."""
    file = Path(path) / "plan.json" if Path(path).is_dir() else Path(path)
    return parse_text(read_text(file, "plan file"), str(file))


def load_plan_file(path: str) -> PlanFile:
    """Raises UserError with the file and the first mistake."""
    plan, mistakes = read_plan_file(load_values(path))
    if mistakes:
        raise UserError(f"{path}: {mistakes[0]}")
    return plan


def runs_of(layers: Any) -> list[list[int]]:
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
