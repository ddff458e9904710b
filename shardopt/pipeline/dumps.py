"""Directories of IR files: one after every pass, or one after every compilation phase.

The files hold the whole module with all constants, so that each of them can be run again.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from jaxlib.mlir import ir

from shardopt.ir.printing import PrintStyle
from shardopt.pipeline.instrumentation import Instrumentation
from shardopt.pipeline.ir_printer import DUMP_WIDTH
from shardopt.pipeline.parser import Leaf, PhaseStep, Pipeline, leaves, leaves_of
from shardopt.pipeline.timing import timing_json, timing_tree
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.pipeline.manager import PipelineResult

# Every pipeline that runs while this variable names a directory leaves its dumps in a numbered
# folder there.
DUMP_VARIABLE = "SHARDOPT_DUMP_IR_TO"

# All constants, since files can be run again; long lines are broken, since they are read, too.
FILE_STYLE = PrintStyle(width=DUMP_WIDTH)

DUMP_FILE = re.compile(r"\d+[_-].*\.mlir")


@dataclass
class TreeDumper(Instrumentation):
    """Writes `00_input.mlir`, then `NN_<pass>.mlir` after each pass, `pipeline.txt` and at the end
    `timing.json`.

    The dumps of an earlier run in the same directory are removed first, so that no stale file
    misleads. With `only_changes` passes that change nothing leave no file, and the numbers of
    the others stay."""

    directory: Path
    style: PrintStyle = FILE_STYLE
    only_changes: bool = False
    _count: int = field(default=0, repr=False)
    _whole: str = field(default="", repr=False)
    _digits: int = field(default=2, repr=False)
    last_file: Path | None = field(default=None, repr=False)

    def begin(self, pipeline: Pipeline, module: ir.Module) -> None:
        _prepare(self.directory)
        passes = leaves(pipeline)
        self._count, self._digits = 0, max(2, len(str(len(passes))))
        lines = [str(pipeline), ""]
        for number, leaf in enumerate(passes, start=1):
            within = f"  in {' > '.join(leaf.groups)}" if leaf.groups else ""
            lines.append(f"{number:0{self._digits}} {leaf.step}{within}")
        (self.directory / "pipeline.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._write("input", module)

    def after(self, leaf: Leaf, module: ir.Module) -> None:
        self._count += 1
        self._write(leaf.name, module)

    def end(self, result: PipelineResult) -> None:
        (self.directory / "timing.json").write_text(
            timing_json(timing_tree(result)) + "\n", encoding="utf-8"
        )

    def _write(self, name: str, module: ir.Module) -> None:
        if self.only_changes:
            before, self._whole = self._whole, self.style.complete().text(module.operation)
            if before == self._whole:
                return
        self.last_file = self.directory / f"{self._count:0{self._digits}}_{name}.mlir"
        self.last_file.write_text(self.style.text(module.operation), encoding="utf-8")


@dataclass
class PhaseDumper(Instrumentation):
    """Writes `0-input.mlir`, then `N-<phase>.mlir` after each phase that stands directly in the
    pipeline."""

    directory: Path
    style: PrintStyle = FILE_STYLE
    _ends: dict[int, str] = field(default_factory=dict, repr=False)
    _done: int = field(default=0, repr=False)
    _written: int = field(default=0, repr=False)

    def begin(self, pipeline: Pipeline, module: ir.Module) -> None:
        _prepare(self.directory)
        self._ends, self._done, self._written = {}, 0, 0
        passes = 0
        for step in pipeline.steps:
            passes += len(leaves_of(step))
            if isinstance(step, PhaseStep):
                self._ends[passes] = step.name.removeprefix("shardopt-")
        self._write("input", module)

    def after(self, leaf: Leaf, module: ir.Module) -> None:
        self._done += 1
        if self._done in self._ends:
            self._write(self._ends[self._done], module)

    def _write(self, name: str, module: ir.Module) -> None:
        text = self.style.text(module.operation)
        (self.directory / f"{self._written}-{name}.mlir").write_text(text, encoding="utf-8")
        self._written += 1


def dumps_from_environment() -> tuple[Instrumentation, ...]:
    """The dumper that `SHARDOPT_DUMP_IR_TO` asks for; each pipeline gets a folder `001`, `002`, …
    of its own there."""
    parent = os.environ.get(DUMP_VARIABLE)
    return (TreeDumper(_next_folder(Path(parent))),) if parent else ()


def _next_folder(parent: Path) -> Path:
    _make(parent)
    for number in count(1):
        folder = parent / f"{number:03}"
        try:
            folder.mkdir()
        except FileExistsError:  # of an earlier pipeline, perhaps of another process that runs now
            continue
        break
    return folder


def _prepare(directory: Path) -> None:
    _make(directory)
    for stale in directory.iterdir():
        if DUMP_FILE.fullmatch(stale.name) or stale.name == "timing.json":
            stale.unlink()


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the directory '{directory}': {error.strerror}") from error
