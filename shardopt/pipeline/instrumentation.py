"""What can watch a pipeline run: IR printed between passes, a directory of IR files, and the timing report."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from jaxlib.mlir import ir

from shardopt.cost.errors import UserError
from shardopt.pipeline.parser import Leaf, Pipeline, leaves

if TYPE_CHECKING:
    from shardopt.pipeline.manager import Result

DUMP_FILE = re.compile(r"\d{2,}_.*\.mlir")


class Instrumentation:
    """Hooks around passes, which do nothing here. A module that `after` sees has been verified, unless that is off."""

    def begin(self, pipeline: Pipeline, module: ir.Module) -> None:
        """Before the first pass."""

    def before(self, leaf: Leaf, module: ir.Module) -> None:
        """Before each pass."""

    def after(self, leaf: Leaf, module: ir.Module) -> None:
        """After each pass that succeeded."""

    def failed(self, leaf: Leaf, error: Exception) -> None:
        """After a pass that raised; the module may be invalid, and printing it could crash."""


@dataclass
class IRPrinter(Instrumentation):
    """Prints the module to `stream` before or after passes, as `mlir-opt` does.

    `after_change` prints only where the text differs from the one printed before the pass; `after_passes` names
    single passes.
    """

    stream: TextIO
    before_all: bool = False
    after_all: bool = False
    after_change: bool = False
    after_passes: tuple[str, ...] = ()
    _digest: bytes = field(default=b"", repr=False)

    def begin(self, pipeline: Pipeline, module: ir.Module) -> None:
        self._digest = _digest(_text(module)) if self.after_change else b""

    def before(self, leaf: Leaf, module: ir.Module) -> None:
        if self.before_all:
            self._print("Before", leaf, _text(module))

    def after(self, leaf: Leaf, module: ir.Module) -> None:
        wanted = self.after_all or leaf.name in self.after_passes
        if not wanted and not self.after_change:
            return
        text = _text(module)
        if self.after_change:
            digest = _digest(text)
            wanted = digest != self._digest
            self._digest = digest
        if wanted:
            self._print("After", leaf, text)

    def failed(self, leaf: Leaf, error: Exception) -> None:
        if self.after_all or leaf.name in self.after_passes:
            print(f"// -----// {leaf.step} failed //----- //", file=self.stream)

    def _print(self, when: str, leaf: Leaf, text: str) -> None:
        print(f"// -----// IR Dump {when} {leaf.step} //----- //\n{text}", file=self.stream, flush=True)


@dataclass
class TreeDumper(Instrumentation):
    """Writes `00_input.mlir`, then `NN_<pass>.mlir` after each pass, and `pipeline.txt` that names them.

    The dumps of an earlier run in the same directory are removed first, so that no stale file misleads.
    """

    directory: Path
    _count: int = field(default=0, repr=False)
    _digits: int = field(default=2, repr=False)

    def begin(self, pipeline: Pipeline, module: ir.Module) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot create the directory '{self.directory}': {error.strerror}") from error
        for stale in self.directory.iterdir():
            if DUMP_FILE.fullmatch(stale.name):
                stale.unlink()
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

    def _write(self, name: str, module: ir.Module) -> None:
        path = self.directory / f"{self._count:0{self._digits}}_{name}.mlir"
        path.write_text(_text(module), encoding="utf-8")


def timing_report(result: Result, around: Sequence[tuple[str, float]] = ()) -> str:
    """Wall time as a tree of phases and passes. `around` adds `(name, seconds)` rows for work outside of passes."""
    rows: list[tuple[int, str, float]] = []
    open_groups: tuple[str, ...] = ()
    for index, step in enumerate(result.steps):
        groups = step.leaf.groups
        shared = _common_prefix(open_groups, groups)
        for depth in range(shared, len(groups)):
            inside = groups[: depth + 1]
            rows.append((depth, groups[depth], _run_seconds(result, index, inside)))
        rows.append((len(groups), str(step.leaf.step), step.seconds))
        open_groups = groups
    rows.append((0, "(verify each)", sum(step.verify_seconds for step in result.steps)))
    rows.extend((0, f"({name})", seconds) for name, seconds in around)
    total = sum(seconds for depth, _, seconds in rows if depth == 0)
    lines = [f"===- execution time report: {total:.4f} seconds -==="]
    for depth, name, seconds in [*rows, (0, "total", total)]:
        share = 100 * seconds / total if total else 0.0
        lines.append(f"  {seconds:10.4f} ({share:5.1f}%)  {'  ' * depth}{name}")
    return "\n".join(lines)


def _run_seconds(result: Result, start: int, groups: tuple[str, ...]) -> float:
    """Seconds of the passes from `start` on that stand inside `groups` without a break."""
    seconds = 0.0
    for step in result.steps[start:]:
        if step.leaf.groups[: len(groups)] != groups:
            break
        seconds += step.seconds
    return seconds


def _common_prefix(one: Iterable[str], other: Iterable[str]) -> int:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length


def _text(module: ir.Module) -> str:
    """The module as text, in generic form if it is invalid, which can happen where passes are not verified."""
    return str(module.operation).rstrip("\n") + "\n"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
