"""Reproducers: a file with a module and the pipeline that fails on it, in the format of `mlir-opt
--run-reproducer`.

A reproducer of the whole run holds the input and all passes; a local one the module just before the
pass that failed, and only that pass. The module before a pass is not kept during the run: passes
are deterministic, so it is made again when something has failed, and runs that succeed cost
nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jaxlib.mlir import ir

from shardopt.ir.printing import PrintStyle
from shardopt.pipeline.instrumentation import Instrumentation
from shardopt.pipeline.parser import ROOT_ANCHOR, Leaf, Pipeline, anchored, leaves
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.pipeline.manager import PipelineResult

# Locations of the original stay, so that messages of a rerun point at the user's file.
_STYLE = PrintStyle(debug_info=True)

_FOOTER = """
{-#
  external_resources: {
    mlir_reproducer: {
      pipeline: "%s",
      disable_threading: true,
      verify_each: %s
    }
  }
#-}
"""
_PIPELINE = re.compile(
    r'\bmlir_reproducer\s*:\s*\{[^}]*?\bpipeline\s*:\s*"((?:[^"\\]|\\.)*)"', re.DOTALL
)
_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)
_VERIFY_EACH = re.compile(r"\bverify_each\s*:\s*(true|false)\b")


@dataclass(frozen=True)
class Reproduction:
    """What a reproducer says to run."""

    pipeline: str
    verify_each: bool = True


@dataclass
class PassTracker(Instrumentation):
    """Knows which pass runs, or ran last: what to reproduce after a failure. `on_pass` hears the
    number of each."""

    on_pass: Callable[[int], None] | None = None
    index: int = -1
    leaf: Leaf | None = field(default=None)
    finished: bool = False

    def begin(self, pipeline: Pipeline, module: ir.Module) -> None:
        self.index, self.leaf, self.finished = -1, None, False

    def before(self, leaf: Leaf, module: ir.Module) -> None:
        self.index += 1
        self.leaf = leaf
        if self.on_pass is not None:
            self.on_pass(self.index)

    def end(self, result: PipelineResult) -> None:
        self.finished = True

    @property
    def failed_leaf(self) -> Leaf | None:
        return None if self.finished else self.leaf


def reproducer_text(module: ir.Module, recipe: Reproduction) -> str:
    """The file: the module with its locations, and the recipe behind it."""
    return _STYLE.text(module.operation) + footer(recipe)


def footer(recipe: Reproduction) -> str:
    """The recipe as text that may stand behind any module."""
    escaped = recipe.pipeline.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return _FOOTER % (escaped, "true" if recipe.verify_each else "false")


def read_recipe(text: str, name: str) -> Reproduction:
    """The recipe of a reproducer. Raises UserError when there is none."""
    text = _COMMENT.sub("", text)
    recipes = list(_PIPELINE.finditer(text))
    if not recipes:
        raise UserError(
            f"'{name}' is no reproducer: expected a 'mlir_reproducer' resource with a "
            "pipeline in it"
        )
    pipeline = re.sub(r"\\([0-9A-Fa-f]{2}|.)", _unescaped, recipes[-1][1])
    verify = _VERIFY_EACH.search(text, recipes[-1].end())
    return Reproduction(pipeline, verify is None or verify[1] == "true")


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if len(match[1]) == 2 else match[1]


def part_of(pipeline: Pipeline, stop: int, start: int = 0) -> str:
    """The passes of a pipeline with numbers from `start` to before `stop`, without phases, as
    pipeline text."""
    steps = [anchored(leaf.step, leaf.anchors[1:]) for leaf in leaves(pipeline)[start:stop]]
    return f"{ROOT_ANCHOR}({','.join(steps)})"


def make_reproducer(
    load: Callable[[], ir.Module], pipeline: Pipeline, index: int | None, verify_each: bool
) -> str:
    """The text of a reproducer for the pass with number `index`, or for the whole run when that is
    None.

    `load` reads the input into a fresh context; the passes before `index` run again on it.
    """
    from shardopt.pipeline.manager import run_pipeline

    if index is None:
        return reproducer_text(load(), Reproduction(str(pipeline), verify_each))
    module = load()
    # These passes have succeeded once: nothing is verified a second time.
    run_pipeline(module, part_of(pipeline, index), verify_each=False)
    return reproducer_text(module, Reproduction(part_of(pipeline, index + 1, index), verify_each))
