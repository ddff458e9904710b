"""IR printed between passes, as `mlir-opt` does it with its `--mlir-print-ir-*` flags."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from jaxlib.mlir import ir

from shardopt.ir.printing import PrintStyle
from shardopt.pipeline.instrumentation import Instrumentation
from shardopt.pipeline.ir_diff import ir_diff
from shardopt.pipeline.parser import Leaf
from shardopt.pipeline.scope import ops_under

_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan", "/": "bold"}

# Lines of dumps, of which a choice of shardings alone may make a hundred thousand characters.
DUMP_WIDTH = 120

# Constants in dumps are cut: weights would bury the program, and a dump is for reading. Elements,
# then characters.
DUMP_STYLE = PrintStyle(elements_limit=16, resource_limit=64, width=DUMP_WIDTH)


@dataclass
class IRPrinter(Instrumentation):
    """Prints to `stream` the ops that a pass runs on: the module, or with nesting the functions.

    Each of the switches works alone. With `after_change`, what is printed after passes leaves out
    the ops that the pass did not change, in what the style cuts off neither; `before_passes` and
    `after_passes` name single passes; `module_scope` prints the whole module around nested passes
    too; `diff` prints what changed, with `color` in color."""

    stream: TextIO
    before_all: bool = False
    after_all: bool = False
    after_change: bool = False
    after_failure: bool = False
    module_scope: bool = False
    diff: bool = False
    color: bool = False
    before_passes: tuple[str, ...] = ()
    after_passes: tuple[str, ...] = ()
    style: PrintStyle = DUMP_STYLE
    _texts: tuple[str, ...] = field(default=(), repr=False)
    _digests: tuple[bytes, ...] = field(default=(), repr=False)

    def before(self, leaf: Leaf, module: ir.Module) -> None:
        if self.before_all or leaf.name in self.before_passes:
            self._print(f"Before {leaf.step}", leaf, module)
        if self.diff:
            self._texts = tuple(self._text(op) for op in self._scope(leaf, module))
        if self.diff or self.after_change:
            self._digests = tuple(map(self._digest, self._scope(leaf, module)))

    def after(self, leaf: Leaf, module: ir.Module) -> None:
        if self.diff:
            self._print_diff(leaf, module)
        named = self.after_all or leaf.name in self.after_passes
        if named or (self.after_change and not self.after_passes):
            known = self._digests if self.after_change else ()
            self._print(f"After {leaf.step}", leaf, module, known)

    def failed(self, leaf: Leaf, error: Exception, module: ir.Module) -> None:
        if self.after_all or self.after_failure or leaf.name in self.after_passes:
            self._print(f"After {leaf.step} Failed", leaf, module)

    def _print_diff(self, leaf: Leaf, module: ir.Module) -> None:
        """Of the ops of the pass, one by one; nothing for those that did not change. Where the pass
        made or erased some, they are compared as one text."""
        ops = list(self._scope(leaf, module))
        before, after = self._texts, tuple(map(self._text, ops))
        whole = len(before) != len(after)
        if whole:
            before, after = ("".join(before),), ("".join(after),)
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            lines = ir_diff(old, new) if old != new else self._unseen(whole, index, ops)
            if not lines:
                continue
            where = "" if whole else _where(ops[index])
            title = f"// -----// IR Diff After {leaf.step}{where} //----- //"
            if self.color:
                print_colored_diff([title, *lines], self.stream)
            else:
                print(title, *lines, sep="\n", file=self.stream, flush=True)

    def _unseen(self, whole: bool, index: int, ops: Sequence[ir.Operation]) -> list[str]:
        """What stands for the lines of a diff where only what the style cuts off has changed."""
        if whole or self._digest(ops[index]) == self._digests[index]:
            return []
        return ["@@ the change is in what the text leaves out, as elements of constants @@"]

    def _print(
        self, title: str, leaf: Leaf, module: ir.Module, known: tuple[bytes, ...] = ()
    ) -> None:
        """Print the ops of the pass; those whose digest stands at their place in `known` are left
        out."""
        for index, op in enumerate(self._scope(leaf, module)):
            if index < len(known) and self._digest(op) == known[index]:
                continue
            print(
                f"// -----// IR Dump {title}{_where(op)} //----- //\n{self._text(op)}",
                file=self.stream,
                flush=True,
            )

    def _scope(self, leaf: Leaf, module: ir.Module) -> Iterator[ir.Operation]:
        return iter((module.operation,)) if self.module_scope else ops_under(module, leaf.anchors)

    def _text(self, op: ir.Operation) -> str:
        return self.style.text(op)

    def _digest(self, op: ir.Operation) -> bytes:
        return hashlib.sha256(self.style.complete().text(op).encode()).digest()


def _where(op: ir.Operation) -> str:
    return "" if op.name == "builtin.module" else f" ('{op.name}' operation{_symbol(op)})"


def print_colored_diff(lines: Sequence[str], stream: TextIO) -> None:
    """As `git diff` colors it, unless the environment says NO_COLOR."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, force_terminal=True, soft_wrap=True, highlight=False)
    for line in lines:
        console.print(Text(line, _DIFF_STYLES.get(line[:1], "")))
    stream.flush()


def _symbol(op: ir.Operation) -> str:
    attributes = op.attributes
    return f": @{ir.StringAttr(attributes['sym_name']).value}" if "sym_name" in attributes else ""
