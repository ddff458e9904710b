"""What shardopt-opt says about its input: diagnostics on stderr, filtered, or compared with
expectations."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from dataclasses import dataclass, field, replace

from shardopt.ir.diagnostics import (
    DiagnosedError,
    Diagnostic,
    Severity,
    diagnostic_json,
    in_file,
    render,
)
from shardopt.ir.io import BUFFER_NAME
from shardopt.support.errors import UserError
from shardopt.tools.common import ANSWERS
from shardopt.tools.opt.expectations import read_expectations, unmet
from shardopt.tools.opt.options import ALL_REMARKS, JSON, NAME, VERBOSITY

# As Clang and mlir-opt color them.
_STYLES = {
    "error": "bold red",
    "warning": "bold magenta",
    "remark": "bold blue",
    "note": "bold bright_black",
}


@dataclass
class Reporter:
    """Takes the diagnostics of one module; with `--verify-diagnostics` it keeps them until
    `unexpected`.

    `file` is the name of the input, and `text` its text when that cannot be read from the file
    again."""

    options: argparse.Namespace
    file: str
    text: str | None = None
    kept: list[Diagnostic] = field(default_factory=list)

    def __call__(self, diagnostic: Diagnostic) -> None:
        if not self._is_verbose_enough(diagnostic):
            return
        if diagnostic.severity == "remark" and not self._is_wanted(diagnostic):
            return
        placed = in_file(diagnostic, self.file, BUFFER_NAME)
        if self.options.verify_diagnostics:
            self.kept.append(placed)
        else:
            self._print(placed)

    def error(self, error: UserError) -> None:
        """Report an error: with its places in the IR, or as a message of the tool."""
        if self.options.mlir_print_stacktrace_on_diagnostic:
            traceback.print_exception(error)
        if isinstance(error, DiagnosedError):
            for diagnostic in error.diagnostics:
                self(diagnostic)
        elif self.options.verify_diagnostics:
            self.kept.append(Diagnostic("error", str(error)))
        elif self.options.diagnostics_format == JSON:
            print_json(error)
        else:
            print(f"{NAME}: error: {error}", file=sys.stderr)

    def unexpected(self, text: str, first_line: int = 1) -> bool:
        """Compare what was kept with the expectations in `text`, a part of the file from
        `first_line` on; print the differences, true if there are any."""
        expectations, errors = read_expectations(text, self.file, first_line)
        optional: tuple[Severity, ...] = () if self.options.remarks else ("remark",)
        if self.options.verify_diagnostics == "only-expected":
            optional = ("error", "warning", "remark", "note")
        errors += unmet(expectations, self.kept, optional)
        for error in errors:
            self._print(error)
        return bool(errors)

    def _is_verbose_enough(self, diagnostic: Diagnostic) -> bool:
        shown = VERBOSITY[: VERBOSITY.index(self.options.mlir_diagnostic_verbosity_level) + 1]
        return f"{diagnostic.severity}s" in shown

    def _is_wanted(self, remark: Diagnostic) -> bool:
        """By category or kind; expectations may name any remark, unless some are selected. Answers
        always are."""
        if remark.kind in ANSWERS:
            return True
        words = self.options.remarks
        if not words:
            return bool(self.options.verify_diagnostics)
        return any(word in (ALL_REMARKS, remark.kind, remark.category) for word in words)

    def _print(self, diagnostic: Diagnostic) -> None:
        if self.options.mlir_disable_diagnostic_notes:
            diagnostic = replace(diagnostic, notes=())
        if self.options.diagnostics_format == JSON:
            _print_json(diagnostic)
            return
        sources = None if self.text is None else {self.file: self.text}
        op_dump = self.options.mlir_print_op_on_diagnostic
        text = render(diagnostic, op_dump=op_dump, sources=sources)
        if self.options.color or sys.stderr.isatty():
            _print_colored(text)
        else:
            print(text, file=sys.stderr)


def print_json(error: UserError) -> None:
    """An error of the user as lines of JSON."""
    for diagnostic in getattr(error, "diagnostics", ()) or (Diagnostic("error", str(error)),):
        _print_json(diagnostic)


def note(options: argparse.Namespace, message: str) -> None:
    """A message of the tool itself that is no error."""
    if options.diagnostics_format == JSON:
        _print_json(Diagnostic("note", message))
    else:
        print(f"{NAME}: note: {message}", file=sys.stderr)


def _print_json(diagnostic: Diagnostic) -> None:
    print(json.dumps(diagnostic_json(diagnostic), ensure_ascii=False), file=sys.stderr)


def _print_colored(text: str) -> None:
    """With the severities in color, unless the environment says NO_COLOR."""
    from rich.console import Console
    from rich.text import Text

    colored = Text(text)
    for severity, style in _STYLES.items():
        colored.highlight_regex(rf"(?<=: ){severity}:(?= )", style)
    Console(stderr=True, force_terminal=True, soft_wrap=True, highlight=False).print(colored)
