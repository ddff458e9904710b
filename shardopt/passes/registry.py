"""The table of passes: a name and where its class lives. A pass's module is imported when it is
first asked for."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.passes.base import Pass

PREFIX = "shardopt-"

# Modules of this package that hold no pass; what a large pass is made of stands in a folder.
INFRASTRUCTURE = ("base", "options", "registry")

# In the order of the phases; each name is `shardopt-<verb>-<object>`, its file
# `<verb>_<object>.py`, its class the same words in CamelCase, and its tests
# `tests/lit/passes/<verb>-<object>.mlir` and `…-invalid.mlir`.
PASSES: dict[str, str] = {
    f"{PREFIX}{verb_object}": f"shardopt.passes.{verb_object.replace('-', '_')}:{verb_object.title().replace('-', '')}"
    for verb_object in (
        "inline-calls",
        "read-annotations",
        "unroll-loops",
        "split-branches",
        "batch-gathers",
        "normalize",
        "verify-imported",
        "split-microbatches",
        "verify-microbatched",
        "cluster-layers",
        "verify-clustered",
        "outline-stages",
        "split-backward",
        "verify-staged",
        "mark-carried",
        "separate-accumulators",
        "choose-shardings",
        "verify-chosen",
        "rematerialize",
        "insert-reshards",
        "annotate-shardings",
        "verify-sharded",
        "insert-transfers",
        "verify-transferred",
        "schedule-pipeline",
        "verify-scheduled",
        "lower-to-fragment-calls",
        "verify-exported",
    )
}


@cache
def pass_class(name: str) -> type[Pass]:
    """The class registered under `name`. Raises UserError for an unknown name."""
    from shardopt.passes.options import unknown_name

    target = PASSES.get(name)
    if target is None:
        raise UserError(unknown_name("pass", name, tuple(PASSES)))
    module, _, cls = target.partition(":")
    return getattr(import_module(module), cls)
