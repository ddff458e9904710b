"""The fields of a plan file: readers and JSON schema of `shardopt.planfile.plan_file`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from shardopt.graph.offloading import MODES as OFFLOAD_MODES
from shardopt.graph.recomputed_units import MODE_PATTERN, MODE_TEXT, is_mode
from shardopt.hardware.cluster_file import DESCRIPTION
from shardopt.mesh.mesh import AXIS_NAMES
from shardopt.options.plan_options import PlanOptions
from shardopt.planfile.option_fields import Options
from shardopt.planfile.parts import (
    VERSION,
    PlanFile,
    PlannedCopy,
    PlannedLayers,
    PlannedModel,
    PlannedRemat,
    PlannedShardings,
    PlannedStage,
)
from shardopt.support.readers import COUNT, INDEX, NOT_NEGATIVE, Number, Scalar, Schema, Text
from shardopt.support.records import Field, Items, Nullable, Record, Table, TupleOf


@dataclass(frozen=True)
class Sizes:
    """`2x4`, read into as many numbers as there are, two to `most`."""

    example: str
    most: int = 2

    @property
    def _pattern(self) -> str:
        number, more = "[1-9][0-9]{0,8}", self.most - 1
        return f"{number}x{number}" if more == 1 else f"{number}(x{number}){{1,{more}}}"

    def read(self, value: Any, path: str, errors: list[str]) -> tuple[int, ...] | None:
        if not isinstance(value, str) or not re.fullmatch(self._pattern, value):
            errors.append(
                f"field '{path}': expected sizes such as '{self.example}', got {value!r:.80}"
            )
            return None
        return tuple(map(int, value.split("x")))

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{self._pattern}$"}


class _Mode:
    def read(self, value: Any, path: str, errors: list[str]) -> str | None:
        if not isinstance(value, str) or not is_mode(value):
            errors.append(f"field '{path}': expected one of {MODE_TEXT}, got {value!r:.80}")
            return None
        return value

    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^({MODE_PATTERN})$"}


class _Version:
    def read(self, value: Any, path: str, errors: list[str]) -> int | None:
        if value != VERSION or isinstance(value, bool):
            errors.append(f"expected field '{path}' to be {VERSION}, found {value!r:.80}")
        return VERSION

    def schema(self) -> Schema:
        return {"const": VERSION}


_PAIR = Items(INDEX, 2, 2)
_RUNS = Items(TupleOf((Number(at_least=-1, whole=True), COUNT)))
_INDICES = Items(INDEX)

_REMAT = Record(
    PlannedRemat,
    {
        "tensor": Field(INDEX, "the value that is rematerialized"),
        "chain": Field(_INDICES, "the operations that make it"),
        "strategies": Field(Items(Text()), "their shardings"),
        "readers": Field(_INDICES, "operations that read it then"),
        "gap": Field(_PAIR, "positions between which nobody holds it"),
        "extended": Field(_INDICES, "operands that live longer for it"),
        "scratch_bytes": Field(INDEX),
        "seconds": Field(NOT_NEGATIVE),
    },
)
_COPY = Record(PlannedCopy, {"tensor": Field(INDEX), "sharding": Field(Text()), "op": Field(INDEX)})
_SHARDINGS = Record(
    PlannedShardings,
    {
        "inputs": Field(
            Table(Text()),
            "sharding of each argument (argN) and arriving value, such as [{x}, {}]",
            {},
        ),
        "ops": Field(
            Items(Text()),
            "operation, shardings of operands -> of results; none: the solver decides",
            (),
        ),
        "rematerialized": Field(
            Items(_REMAT), "values that are computed a second time to save memory", ()
        ),
        "copies": Field(
            Items(_COPY), "copies that an operation makes for itself to save memory", ()
        ),
    },
)
_STAGE = Record(
    PlannedStage,
    {
        "layers": Field(Nullable(_PAIR), "first and last layer", None),
        "group": Field(Nullable(Text()), "name of the host group", None),
        "submesh": Field(Nullable(Sizes("1x4")), "hosts x devices per host", None),
        "logical_shape": Field(
            Nullable(Sizes("2x2", len(AXIS_NAMES))), "sizes of the mesh axes x, y and so on", None
        ),
        "devices": Field(
            Nullable(Items(INDEX, 1)), "device ids in row-major order of the axes", None
        ),
        "recompute": Field(Nullable(_Mode()), "what the backward recomputes", None),
        "offload": Field(
            Nullable(Text(choices=OFFLOAD_MODES)), "what is kept in the memory of the hosts", None
        ),
        "intra_op": Field(Nullable(Text()), "how the stage is sharded: ilp, or a preset", None),
        "shardings": Field(Nullable(_SHARDINGS), "of the values of the stage", None),
        "predicted": Field(
            Nullable(Table(Scalar())), "figures of one step; for readers only", None
        ),
    },
)
_LAYERS = Record(
    PlannedLayers,
    {
        "count": Field(Nullable(COUNT), "number of layers", None),
        "starts": Field(
            Items(Text("an operation number or a pattern of locations")),
            "forward operations that begin a layer, by number in the body or pattern of "
            "their location",
            (),
        ),
        "body": Field(
            Nullable(_RUNS), "[layer, operations in a row] for the operations of a microbatch", None
        ),
        "prologue": Field(_RUNS, "the same for those before the loop", ()),
        "epilogue": Field(_RUNS, "the same for those after the loop", ()),
        "arguments": Field(_RUNS, "the same for the arguments of the model", ()),
    },
)
PLAN = Record(
    PlanFile,
    {
        "version": Field(_Version(), "of this format"),
        "made_by": Field(
            Table(Text(may_be_empty=True)), "versions that made the plan; for readers only", {}
        ),
        "model": Field(
            Nullable(
                Record(
                    PlannedModel,
                    {
                        "fingerprint": Field(Text(), "hash of the operations of the model"),
                        "name": Field(Text(may_be_empty=True), "what messages called it", ""),
                    },
                )
            ),
            "the model that the plan was made for",
            None,
        ),
        "options": Field(Options(PlanOptions), "options of `shardopt plan`", {}),
        "cluster": Field(Nullable(DESCRIPTION), "the cluster, as in a cluster file", None),
        "layers": Field(Nullable(_LAYERS), "which operation belongs to which layer", None),
        "stages": Field(Items(_STAGE), "the stages in pipeline order", ()),
        "predicted": Field(
            Nullable(Table(Scalar())), "figures of one step; for readers only", None
        ),
    },
)


def schema() -> Schema:
    """The JSON schema of a plan file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "shardopt plan",
        **PLAN.schema(),
    }
