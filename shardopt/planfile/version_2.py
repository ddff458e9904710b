"""Plan files of version 2 in the words of version 3, which names some fields and an option anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from shardopt.planfile.fields import PLAN
from shardopt.planfile.parts import PlanFile
from shardopt.support.documents import errors_of

_OPTIONS = {"partial_sums": "unreduced"}
_SHARDINGS = {"again": "rematerialized", "fresh": "copies"}
# Classes that a prediction of version 2 is signed with.
_CLASSES = {"PlannedLayers(": "GivenLayers(", "PlannedStage(": "GivenStage("}


def upgraded(values: Any) -> Any:
    """The values of a file of version 2 as those of one of version 3; any others as they are.

    Parts that are no fields at all stay as they are, for the reader of version 3 to refuse.
    """
    if not isinstance(values, dict) or values.get("version") != 2:
        return values
    present = {**values, "version": 3}
    if "options" in values:
        present["options"] = _renamed(values["options"], _OPTIONS)
    if isinstance(values.get("stages"), list):
        present["stages"] = [_stage(stage) for stage in values["stages"]]
    return _signed_anew(present)


def _stage(stage: Any) -> Any:
    if not isinstance(stage, dict) or "shardings" not in stage:
        return stage
    return {**stage, "shardings": _renamed(stage["shardings"], _SHARDINGS)}


def _renamed(fields: Any, names: Mapping[str, str]) -> Any:
    """A field that stands there by both names keeps the old one, which the reader refuses."""
    if not isinstance(fields, dict):
        return fields
    return {
        names[name] if name in names and names[name] not in fields else name: value
        for name, value in fields.items()
    }


def _signed_anew(values: dict[str, Any]) -> dict[str, Any]:
    """A prediction is believed only next to the hash of the decisions it is about: where that of
    version 2 still holds, that of version 3 takes its place."""
    plan, errors = errors_of(PLAN, values)
    if errors or not plan.predicted or plan.predicted.get("decisions") != _decisions(plan):
        return values
    return {**values, "predicted": {**values["predicted"], "decisions": plan.decisions()}}


def _decisions(plan: PlanFile) -> str:
    """`PlanFile.decisions` as version 2 computed it, from the text of Python values."""
    stages = [replace(stage, shardings=None, predicted=None) for stage in plan.stages]
    options = sorted((name, plan.options.get(name)) for name in ("microbatches", "schedule"))
    groups = plan.cluster.groups if plan.cluster is not None else ()
    kernels = [group.device.kernels for group in groups if group.device.kernels is not None]
    text = repr((plan.layers, stages, options, plan.cluster, *kernels))
    for name, earlier in _CLASSES.items():
        text = text.replace(name, earlier)
    return sha256(text.encode()).hexdigest()[:16]
