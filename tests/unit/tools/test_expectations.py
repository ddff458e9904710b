"""Expectations in comments, and splitting an input: what is read, what meets what, and which lines
are named."""

from __future__ import annotations

import pytest

from shardopt.ir.diagnostics import Diagnostic, Position
from shardopt.tools.opt.expectations import read_expectations, unmet
from shardopt.tools.opt.splitting import near_misses, split_input


def at(line: int, severity: str, message: str, *notes: Diagnostic, file: str = "f") -> Diagnostic:
    return Diagnostic(severity, message, Position(file, line, 1), notes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("op // expected-error {{a}}", [1]),
        ("// expected-error @+1 {{a}}\nop", [2]),
        ("op\n// expected-error@-1 {{a}}", [1]),
        ("op\n// expected-error @above {{a}}\n// expected-note @above {{b}}\nop", [1, 1]),
        ("// expected-error @below {{a}}\n// expected-note @below {{b}}\nop", [3, 3]),
        ("op\n// expected-error @unknown {{a}}", [0]),
        ("// expected-remark-re @+2 {{a {{[0-9]+}} b}}", [3]),
        ("nothing", []),
    ],
)
def test_places(text: str, lines: list[int]) -> None:
    expectations, errors = read_expectations(text, "f")
    assert [expectation.line for expectation in expectations] == lines and not errors


def test_every_expectation_is_met() -> None:
    expectations, _ = read_expectations(
        "// expected-error @+1 {{bad}}\n// expected-note @+0 {{here}}", "f"
    )
    diagnostic = at(2, "error", "a bad op", at(2, "note", "look here"))
    assert unmet(expectations, [diagnostic]) == []
    missing = unmet(expectations, [])
    assert [(error.position.line, error.message) for error in missing] == [
        (1, 'expected error "bad" was not produced'),
        (2, 'expected note "here" was not produced'),
    ]


def test_one_expectation_stands_for_equal_diagnostics_of_its_line() -> None:
    """As `mlir-opt --verify-diagnostics` does (19.1.7); where there are several, all are used."""
    twice = [at(2, "error", "a bad op"), at(2, "error", "a bad op")]
    once, _ = read_expectations("// expected-error @+1 {{bad}}", "f")
    assert unmet(once, twice) == []
    both, _ = read_expectations("// expected-error @+1 {{bad}}\n// expected-error @+0 {{bad}}", "f")
    assert unmet(both, twice) == []
    assert [error.position.line for error in unmet(both, twice[:1])] == [2]


@pytest.mark.parametrize(
    "emitted",
    [
        at(1, "error", "bad"),
        at(2, "warning", "bad"),
        at(2, "error", "good"),
        at(2, "error", "bad", file="g"),
    ],
)
def test_line_severity_message_and_file_must_agree(emitted: Diagnostic) -> None:
    expectations, _ = read_expectations("// expected-error @+1 {{bad}}", "f")
    assert len(unmet(expectations, [emitted])) == 2


def test_patterns_are_regular_expressions_and_the_rest_is_not() -> None:
    expectations, _ = read_expectations("// expected-error-re @+1 {{got [{{[0-9]+}}] of (x)}}", "f")
    assert unmet(expectations, [at(2, "error", "it got [12] of (x), sorry")]) == []
    assert len(unmet(expectations, [at(2, "error", "it got [a] of (x)")])) == 2


def test_optional_diagnostics_take_their_notes_along_and_op_dumps_never_count() -> None:
    dump = at(3, "note", "see current operation: module {…}")
    emitted = [at(3, "remark", "fine", at(3, "note", "why")), at(4, "error", "bad", dump)]
    assert [error.message for error in unmet((), emitted, ["remark"])] == ["unexpected error: bad"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("// expected-error {{a}} // more", "to end the line"),
        ("// expected-error @12 {{a}}", "to end the line"),
        ("// expected-error-re {{a {{(}} b}}", "invalid regular expression"),
    ],
)
def test_malformed_expectations_are_errors(line: str, message: str) -> None:
    _, errors = read_expectations(f"\n{line}\n", "f")
    assert len(errors) == 1 and message in errors[0].message and errors[0].position.line == 2


def test_parts_keep_their_line_numbers() -> None:
    chunks = split_input("a\n// -----\nb\nc\n  // -----  \n// -----\nd // -----\n")
    assert [chunk.first_line for chunk in chunks] == [1, 3, 6, 7]
    assert [chunk.text for chunk in chunks] == [
        "a\n",
        "\n\nb\nc\n",
        "\n" * 5 + "\n",
        "\n" * 6 + "d // -----\n\n",
    ]
    assert [chunk.text.strip() for chunk in split_input("a\n// next\nb", "// next")] == ["a", "b"]
    assert len(split_input("a")) == 1


def test_lines_that_nearly_split_are_warned_about() -> None:
    text = "// ----\n// -----\n//------\n// -----// IR Dump //----- //\n// --"
    assert [warning.position.line for warning in near_misses(text, "f")] == [1, 3]
    assert near_misses(text, "f", "// next") == []
