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

# C++ passes for which ours run. The C++ inliner leaves every func.call as it is: the interface that
# it asks for is not registered in wheels of jaxlib.
RUN_INSTEAD = {"inline": "shardopt-inline-calls"}

# Modules of this package that hold no pass; passes stand in the folders.
INFRASTRUCTURE = ("base", "kernels", "options", "registry", "remark_kinds")

# Folder -> the words of its passes, both in the order of the phases. Each pass is called
# `shardopt-<verb>-<object>`, its file `<verb>_<object>.py`, its class the same words in CamelCase,
# and its tests `tests/lit/passes/<verb>-<object>.mlir` and `…-invalid.mlir`.
_ROOMS: dict[str, tuple[str, ...]] = {
    "importing": (
        "inline-calls",
        "read-manual-regions",
        "flatten-tuples",
        "read-annotations",
        "roll-parts",
        "unroll-loops",
        "split-branches",
        "unsort-rows",
        "batch-gathers",
        "normalize",
        "check-custom-calls",
        "verify-imported",
    ),
    "microbatches": ("split-microbatches", "verify-microbatched"),
    "layers": ("split-stacks", "cluster-layers", "verify-clustered"),
    "stages": (
        "split-sums",
        "choose-stages",
        "join-sums",
        "verify-placed",
        "mirror-stages",
        "version-weights",
        "offload-state",
        "slice-tokens",
        "recompute-stages",
        "outline-fragments",
        "split-backward",
        "verify-staged",
    ),
    "sharding": (
        "rotate-keys",
        "mark-carried",
        "separate-accumulators",
        "choose-shardings",
        "verify-chosen",
        "rematerialize",
        "insert-reshards",
        "localize-calls",
        "annotate-shardings",
        "verify-sharded",
    ),
    "pipelining": (
        "insert-transfers",
        "verify-transferred",
        "schedule-pipeline",
        "verify-scheduled",
        "assign-meshes",
        "lower-to-fragment-calls",
        "verify-exported",
    ),
}


def _target(room: str, words: str) -> str:
    return f"shardopt.passes.{room}.{words.replace('-', '_')}:{words.title().replace('-', '')}"


PASSES: dict[str, str] = {
    f"{PREFIX}{words}": _target(room, words) for room, passes in _ROOMS.items() for words in passes
}


@cache
def pass_class(name: str) -> type[Pass]:
    """The class registered under `name`. Raises UserError for an unknown name."""
    from shardopt.support.suggestions import unknown_name

    target = PASSES.get(name)
    if target is None:
        raise UserError(unknown_name("pass", name, tuple(PASSES)))
    module, _, cls = target.partition(":")
    return getattr(import_module(module), cls)
