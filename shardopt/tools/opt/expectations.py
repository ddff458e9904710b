"""`--verify-diagnostics`: comments in the input say which diagnostics are expected, and where.

    // expected-error @+1 {{part of the message}}
    // expected-remark-re @below {{text with {{[0-9]+}} and other patterns in double braces}}

The place is the line of the comment, `@+N`, `@-N`, `@above` or `@below` (the next line that holds
no expectation), or `@unknown` for diagnostics without a line, as those of a module that nothing in
the file opens: they are at the line before the first, too. Every expectation must be met; one
stands for all equal diagnostics of its line, as in mlir-opt, unless there are several for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardopt.ir.diagnostics import Diagnostic, Position, Severity

_DESIGNATOR = re.compile(
    r"expected-(?P<severity>error|warning|remark|note)(?P<regex>-re)?"
    r"\s*(?:@(?P<place>[+-]\d+|above|below|unknown))?\s*\{\{(?P<text>.*)\}\}\s*$"
)
_LOOKS_LIKE_ONE = re.compile(r"expected-(?:error|warning|remark|note)\b[^{]*\{\{")
_PATTERN = re.compile(r"\{\{(.*?)\}\}")

UNKNOWN_LINE = 0


@dataclass(frozen=True)
class Expectation:
    """One comment: what is expected on `line` (0: a diagnostic without a line), and where the
    comment stands."""

    severity: Severity
    line: int
    text: str
    is_regex: bool
    written_at: Position

    def met_by(self, diagnostic: Diagnostic) -> bool:
        if diagnostic.severity != self.severity or diagnostic.position.line != self.line:
            return False
        if self.line != UNKNOWN_LINE and diagnostic.position.file != self.written_at.file:
            return False
        if not self.is_regex:
            return self.text in diagnostic.message
        return re.search(_as_regex(self.text), diagnostic.message) is not None


def read_expectations(
    text: str, file: str, first_line: int = 1
) -> tuple[tuple[Expectation, ...], list[Diagnostic]]:
    """The expectations in the text of a file, and errors about malformed ones.

    Of a part of the file, whose lines begin at `first_line`, what stands before is empty; MLIR
    counts its lines from the marker that it follows."""
    expectations: list[Expectation] = []
    # `@below`, until a line without an expectation comes.
    waiting: list[tuple[re.Match[str], Position]] = []
    errors: list[Diagnostic] = []
    above = UNKNOWN_LINE
    before = first_line - 2 if first_line > 1 else UNKNOWN_LINE
    for number, line in enumerate(text.split("\n"), start=1):
        match = _DESIGNATOR.search(line)
        if match is None:
            expectations += [_expectation(earlier, number, where) for earlier, where in waiting]
            waiting.clear()
            above = number
            if wrong := _LOOKS_LIKE_ONE.search(line):
                errors.append(_malformed(Position(file, number, wrong.start() + 1)))
            continue
        where = Position(file, number, match.start() + 1)
        if match["place"] == "below":
            waiting.append((match, where))
        else:
            at = _line_of(match["place"], number, above)
            at = UNKNOWN_LINE if at == before else at
            expectations.append(_expectation(match, at, where))
    expectations += [_expectation(earlier, where.line, where) for earlier, where in waiting]
    expectations.sort(key=lambda expectation: expectation.written_at.line)
    return tuple(expectations), errors + [
        _bad_regex(one) for one in expectations if one.is_regex and not _compiles(one.text)
    ]


def unmet(
    expectations: Sequence[Expectation],
    diagnostics: Iterable[Diagnostic],
    optional: Sequence[Severity] = (),
) -> list[Diagnostic]:
    """Errors: one for each diagnostic that was not expected, one for each expectation that was not
    met.

    Unexpected diagnostics of the severities in `optional` are no errors.
    """
    left = list(expectations)
    errors = []
    for diagnostic, is_optional in _with_notes(diagnostics, optional):
        met = [expectation for expectation in expectations if expectation.met_by(diagnostic)]
        # Those not met yet come first: several of them may stand for several diagnostics.
        if (first := next((one for one in met if one in left), None)) is not None:
            left.remove(first)
        elif not met and not is_optional:
            message = f"unexpected {diagnostic.severity}: {diagnostic.message}"
            errors.append(replace(diagnostic, severity="error", message=message, notes=()))
    for expectation in left:
        message = f'expected {expectation.severity} "{expectation.text}" was not produced'
        errors.append(Diagnostic("error", message, expectation.written_at))
    return errors


def _with_notes(
    diagnostics: Iterable[Diagnostic], optional: Sequence[Severity], inside: bool = False
) -> Iterator[tuple[Diagnostic, bool]]:
    """Diagnostics and their notes; notes of an optional diagnostic are optional, the dump of an op
    never counts."""
    for diagnostic in diagnostics:
        if not diagnostic.is_op_dump:
            is_optional = inside or diagnostic.severity in optional
            yield diagnostic, is_optional
            yield from _with_notes(diagnostic.notes, optional, is_optional)


def _expectation(match: re.Match[str], line: int, where: Position) -> Expectation:
    return Expectation(match["severity"], line, match["text"], match["regex"] is not None, where)  # type: ignore[arg-type]


def _line_of(place: str | None, number: int, above: int) -> int:
    if place is None:
        return number
    if place == "unknown":
        return UNKNOWN_LINE
    return above if place == "above" else number + int(place)


def _as_regex(text: str) -> str:
    """Text with patterns in double braces as one regular expression."""
    parts = _PATTERN.split(text)
    return "".join(
        f"(?:{part})" if index % 2 else re.escape(part) for index, part in enumerate(parts)
    )


def _compiles(text: str) -> bool:
    try:
        re.compile(_as_regex(text))
    except re.error:
        return False
    return True


def _bad_regex(expectation: Expectation) -> Diagnostic:
    return Diagnostic(
        "error", f"invalid regular expression in '{expectation.text}'", expectation.written_at
    )


def _malformed(where: Position) -> Diagnostic:
    return Diagnostic(
        "error", "expected 'expected-<severity>[-re] [@place] {{message}}' to end the line", where
    )
