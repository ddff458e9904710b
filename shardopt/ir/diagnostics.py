"""Diagnostics as plain values: what a pass or a native verifier said, where, and how a person sees
it.

MLIR hands a handler short-lived C++ objects; they are copied into `Diagnostic` at once, so that a
diagnostic may outlive the context, be compared in tests, and be printed with the offending source
line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from jaxlib.mlir import ir

from shardopt.ir.jax_versions import location_kind, with_class
from shardopt.support.errors import UserError

Severity: TypeAlias = Literal["error", "warning", "remark", "note"]

# What a remark is about: something that was done, something that was not, or a figure behind a
# decision.
RemarkCategory: TypeAlias = Literal["passed", "missed", "analysis"]
Handler: TypeAlias = "Callable[[Diagnostic], None]"
Located: TypeAlias = ir.Operation | ir.OpView | ir.Value | ir.Location | None

# An excerpt of a generated line (a whole module on one line, a long constant) would bury the
# message.
MAX_EXCERPT_CHARS = 200

# MLIR attaches the whole op to its errors under these words: for a function or a module, pages of
# text.
CURRENT_OPERATION = "see current operation"
# Some C++ passes attach it to their warnings without these words: results or operands show it.
_OPERATION = re.compile(
    r'(%[\w#:]+(, %[\w#:]+)* = )"?\w+(\.\w+)+\b|"\w+(\.\w+)+"\(|\w+(\.\w+)+ [%@]'
)


# Where operations say what they call.
_CALLED = {"stablehlo.custom_call": "call_target_name", "stablehlo.composite": "name"}


@dataclass(frozen=True)
class Position:
    """A place in a file, counted from 1; line 0 means the file as a whole. `name` is the op's name
    when it has one."""

    file: str = ""
    line: int = 0
    column: int = 0
    name: str = ""

    def __str__(self) -> str:
        if not self.file:
            return f'"{self.name}"' if self.name else "<unknown>"
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True)
class Diagnostic:
    """One message; notes point at the other ops involved. Remarks have a `kind`
    ("no-sharding-rule") and a category."""

    severity: Severity
    message: str
    position: Position = Position()
    notes: tuple[Diagnostic, ...] = ()
    kind: str = ""
    category: RemarkCategory | None = None

    @property
    def is_op_dump(self) -> bool:
        """True for the note that holds the whole op, which MLIR attaches to its errors."""
        return self.severity == "note" and self.message.startswith(CURRENT_OPERATION)

    def __str__(self) -> str:
        kind = f" [{self.kind}]" if self.kind else ""
        return f"{self.position}: {self.severity}: {self.message}{kind}"


class DiagnosedError(UserError):
    """A user's error with a place in the IR; `diagnostics` holds the errors of one cause, the
    leading one first."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__("\n".join(str(diagnostic) for diagnostic in diagnostics))
        self.diagnostics = diagnostics

    def __reduce__(self) -> tuple[type[DiagnosedError], tuple[Diagnostic, ...]]:
        return type(self), self.diagnostics  # not the text that they make

    @property
    def diagnostic(self) -> Diagnostic:
        return self.diagnostics[0]

    def changed(self, change: Callable[[Diagnostic], Diagnostic]) -> DiagnosedError:
        """An error of the same kind with other diagnostics."""
        return type(self)(*map(change, self.diagnostics))


def position_of(where: Located) -> Position:
    """The file position behind an op, value or location; of a fused or call-site location the first
    that has a file."""
    if where is None:
        return Position()
    location = where if isinstance(where, ir.Location) else where.location
    return _resolve(location)


def _resolve(location: Any) -> Position:  # which class has the members differs by version
    location = with_class(location)
    kind = location_kind(location)
    if kind == "file":
        return Position(location.filename, location.start_line, location.start_col)
    if kind == "name":
        child = _resolve(location.child_loc)
        return Position(child.file, child.line, child.column, location.name_str)
    if kind == "callsite":
        parts: Sequence[ir.Location] = (location.callee, location.caller)
    elif kind == "fused":
        parts = list(location.locations)
    else:
        return Position()
    first = None
    for part in parts:
        position = _resolve(part)
        if position.file:
            return position
        first = first or position
    return first or Position()


def shown_name(op: ir.Operation) -> str:
    """An operation in a message, by its name; one that calls something by what it calls too:
    `'stablehlo.custom_call' @lapack_spotrf_ffi`."""
    name = _CALLED.get(op.name, "")
    return f"'{op.name}'" + (
        f" @{ir.StringAttr(op.attributes[name]).value}" if name in op.attributes else ""
    )


def diagnostic(
    severity: Severity,
    where: Located,
    message: str,
    notes: Sequence[tuple[Located, str]] = (),
    kind: str = "",
    category: RemarkCategory | None = None,
) -> Diagnostic:
    """A diagnostic at an op, value or location, with one note for each `(where, message)`."""
    attached = tuple(Diagnostic("note", text, position_of(place)) for place, text in notes)
    return Diagnostic(severity, message, position_of(where), attached, kind, category)


def in_file(diagnostic: Diagnostic, name: str, unnamed: str = "") -> Diagnostic:
    """The diagnostic with positions in no file (or in the file called `unnamed`) moved to the file
    `name`."""
    if diagnostic.position.file not in ("", unnamed):
        return diagnostic
    notes = tuple(in_file(note, name, unnamed) for note in diagnostic.notes)
    return replace(diagnostic, position=replace(diagnostic.position, file=name), notes=notes)


def in_binary_file(diagnostic: Diagnostic, name: str, unnamed: str = "") -> Diagnostic:
    """The diagnostic at the binary file `name`, which has no lines.

    Positions that the file holds (of the source it was made from, or inside a type it stores as
    text) may be damaged themselves: they go into the message."""
    notes = tuple(in_binary_file(note, name, unnamed) for note in diagnostic.notes)
    message = diagnostic.message
    if diagnostic.severity != "note" and diagnostic.position.file not in ("", unnamed):
        message += f" (at {diagnostic.position})"
    return replace(diagnostic, message=message, position=Position(name), notes=notes)


def from_native(native: ir.DiagnosticInfo | ir.Diagnostic) -> Diagnostic:
    """Copy a C++ diagnostic, which is gone when its handler returns."""
    severity = str(native.severity).rpartition(".")[2].lower()
    position = position_of(native.location)
    notes = tuple(_with_known_dump(from_native(note), position) for note in native.notes)
    return Diagnostic(severity, native.message, position, notes)  # type: ignore[arg-type]


def _with_known_dump(note: Diagnostic, position: Position) -> Diagnostic:
    """A note that is nothing but the operation of a diagnostic at `position`, in the words that
    MLIR has for those."""
    if note.position == position and _OPERATION.match(note.message):
        return replace(note, message=f"{CURRENT_OPERATION}: {note.message}")
    return note


@contextmanager
def native_diagnostics(context: ir.Context, handler: Handler) -> Iterator[None]:
    """Send everything the C++ side emits on `context` to `handler` instead of stderr.

    Errors reach a handler only while `emit_error_diagnostics` is set; otherwise the bindings pack
    them into the exception and drop them where no exception is raised."""

    def forward(native: ir.Diagnostic) -> bool:
        handler(from_native(native))
        return True

    attached: Any = context.attach_diagnostic_handler(forward)
    before = context.emit_error_diagnostics
    context.emit_error_diagnostics = True
    try:
        yield
    finally:
        context.emit_error_diagnostics = before
        attached.detach()


@contextmanager
def native_errors_raised(
    context: ir.Context, handler: Handler | None = None, also: type[Exception] = ir.MLIRError
) -> Iterator[None]:
    """Turn an `MLIRError` (or an `also`) of the bindings into a `DiagnosedError`, and errors that
    C++ reports while it goes on; other messages go to `handler`."""
    errors: list[Diagnostic] = []

    def sort(diagnostic: Diagnostic) -> None:
        if diagnostic.severity == "error":
            errors.append(diagnostic)
        elif handler is not None:
            handler(diagnostic)

    with native_diagnostics(context, sort):
        try:
            yield
        except (ir.MLIRError, also) as error:
            raise DiagnosedError(*(errors or [Diagnostic("error", str(error))])) from error
    if errors:
        raise DiagnosedError(*errors)


def render(
    diagnostic: Diagnostic, *, op_dump: bool = False, sources: Mapping[str, str] | None = None
) -> str:
    """The text a person sees: `file:line:col: error: message`, the source line and a caret, then
    the notes.

    `op_dump` includes the note with the whole op. `sources` holds the text of inputs that are no
    files, by name."""
    notes = [note for note in diagnostic.notes if op_dump or not note.is_op_dump]
    excerpt = _excerpt(diagnostic.position, sources or {})
    return "\n".join(
        [
            str(diagnostic),
            *excerpt,
            *(render(note, op_dump=op_dump, sources=sources) for note in notes),
        ]
    )


def diagnostic_json(diagnostic: Diagnostic) -> dict[str, Any]:
    """As JSON holds it, for editors: places count from 1, and where nothing is known a field is
    not there."""
    position = diagnostic.position
    fields: dict[str, Any] = {"severity": diagnostic.severity, "message": diagnostic.message}
    known = {
        "file": position.file,
        "line": position.line,
        "column": position.column,
        "kind": diagnostic.kind,
        "category": diagnostic.category,
        "notes": [diagnostic_json(note) for note in diagnostic.notes if not note.is_op_dump],
    }
    return fields | {name: value for name, value in known.items() if value}


def _excerpt(position: Position, sources: Mapping[str, str]) -> list[str]:
    if not position.line:
        return []
    text = sources.get(position.file)
    source = _source_lines(position.file) if text is None else tuple(text.expandtabs(1).split("\n"))
    if position.line > len(source):
        return []
    text = source[position.line - 1]
    if len(text) > MAX_EXCERPT_CHARS or not text.isprintable():
        return []
    return ["  " + text, "  " + " " * max(position.column - 1, 0) + "^"]


@lru_cache(maxsize=8)
def _source_lines(file: str) -> tuple[str, ...]:
    path = Path(file)
    try:
        return tuple(line.expandtabs(1) for line in path.read_text(encoding="utf-8").split("\n"))
    except (OSError, UnicodeDecodeError, ValueError):
        return ()
