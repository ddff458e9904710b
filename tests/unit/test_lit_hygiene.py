"""lit and FileCheck accept much that tests nothing; these checks look for it in the text of every
lit test.

A misspelled directive is a comment to FileCheck, a prefix that no RUN line names is never read, and
a test without a RUN line or without anything that can fail always passes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.doc_sources import ELIDED, messages
from scripts.docs import verifier_modules
from shardopt.passes.registry import PASSES, PREFIX

LIT_ROOT = Path(__file__).parents[1] / "lit"
TESTS = sorted(path for path in LIT_ROOT.rglob("*.mlir") if "Inputs" not in path.parts)
PASS_TESTS = sorted((LIT_ROOT / "passes").glob("*.mlir"))

SUFFIXES = ("", "-NEXT", "-SAME", "-NOT", "-DAG", "-LABEL", "-EMPTY")
COUNT = re.compile(r"-COUNT-\d+")
LIT_WORDS = {"RUN", "REQUIRES", "UNSUPPORTED", "XFAIL", "DEFINE", "REDEFINE", "END", "NOTE"}

# What looks like a directive: capitals at the beginning of a comment, with a colon (or something
# like one) behind.
DIRECTIVE = re.compile(
    r"^\s*//\s*([A-Z][A-Z0-9_-]{2,}(?:\{[A-Z]+\})?)\s*([:;.])(?=\s|$)", re.MULTILINE
)
# A directive in lower or mixed case, or without its colon.
NEAR_MISS = re.compile(
    r"^\s*//\s*((?i:check|chekc|chcek|cehck)(?:-[A-Za-z]+)?)(\s*:|(?=\s+[%@]))", re.MULTILINE
)


def run_lines(text: str) -> list[str]:
    joined = re.sub(r"\\\n\s*//\s*RUN:", " ", text)
    return re.findall(r"//\s*RUN:\s*(.*)", joined)


def declared_prefixes(runs: list[str]) -> set[str]:
    """Prefixes that the FileCheck commands of the RUN lines read."""
    prefixes = set()
    for command in (
        part for run in runs for part in re.split(r"\||&&|;", run) if "FileCheck" in part
    ):
        named = re.findall(r"--?check-prefix(?:es)?[= ](\S+)", command)
        prefixes.update(",".join(named).split(",") if named else ["CHECK"])
    return prefixes


def directive_problems(text: str) -> list[str]:
    """What is wrong with the directives of one test, as sentences."""
    prefixes = declared_prefixes(run_lines(text))
    allowed = {prefix + suffix for prefix in prefixes for suffix in SUFFIXES}
    used, problems = set(), []
    for word, colon in DIRECTIVE.findall(text):
        plain = COUNT.sub("", word.partition("{")[0])
        if plain in LIT_WORDS:
            continue
        if plain not in allowed or colon != ":":
            problems.append(
                f"'{word}{colon}' is no directive; the RUN lines read "
                f"{', '.join(sorted(prefixes)) or 'none'}"
            )
        used.add(plain)
    problems += [
        f"'{word}' looks like a directive"
        for word, _ in NEAR_MISS.findall(text)
        if word not in used
    ]
    for prefix in sorted(prefixes):
        # CHECK beside other prefixes may be unused by one RUN line; a prefix of its own never
        if not used & {prefix + suffix for suffix in SUFFIXES}:
            problems.append(f"the prefix '{prefix}' is read by a RUN line and no line has it")
    return problems


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(LIT_ROOT)))
def test_lit_file_checks_something(path: Path) -> None:
    text = path.read_text()
    runs = run_lines(text)
    assert runs, "no RUN line"
    assert any("FileCheck" in run or "diff " in run or "cmp " in run for run in runs), (
        "no RUN line checks output"
    )
    assert directive_problems(text) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("// RUN: t | FileCheck %s\n// CHECK: a\n", ""),
        ("// RUN: t | FileCheck %s\n// CHEKC: a\n// CHECK: b", "CHEKC"),
        ("// RUN: t | FileCheck %s\n// CHECK-NXT: a\n// CHECK: b", "CHECK-NXT"),
        ("// RUN: t | FileCheck %s\n// CHECK_NEXT: a\n// CHECK: b", "CHECK_NEXT"),
        ("// RUN: t | FileCheck %s\n// CHECK; a\n// CHECK: b", "CHECK;"),
        ("// RUN: t | FileCheck %s\n// check: a\n// CHECK: b", "check"),
        ("// RUN: t | FileCheck %s\n// CHECK-COUNT-2: a\n", ""),
        ("// RUN: t | FileCheck %s --check-prefix=A-B\n// A-B-NEXT: a\n", ""),
        ("// RUN: t | FileCheck %s --check-prefixes=ONE,TWO\n// ONE: a\n", "TWO"),
        ("// RUN: t | FileCheck %s --check-prefix=ONE\n// ONE: a\n// OTHER: b", "OTHER"),
    ],
)
def test_hygiene_finds_misspelled_directives(text: str, words: str) -> None:
    problems = "\n".join(directive_problems(text))
    assert bool(problems) == bool(words)
    assert words in problems


def test_every_pass_has_its_tests_and_every_test_its_pass() -> None:
    """tests/lit/passes/<verb>-<object>.mlir and …-invalid.mlir; further words may name a special
    case."""
    words = {name.removeprefix(PREFIX) for name in PASSES}
    names = {path.stem for path in PASS_TESTS}
    assert sorted(words - names) == [], "passes without a test"
    assert sorted(word for word in words if f"{word}-invalid" not in names) == [], (
        "passes without a test of bad input"
    )
    strays = [
        name for name in names if not any(name == w or name.startswith(f"{w}-") for w in words)
    ]
    assert sorted(strays) == [], "tests of passes that do not exist"


# Errors that no file can have verifiers of ours report: something before them refuses it.
SAID_BEFORE = {
    "expected at least one mesh in the topology, found none": "MLIR's parser",
    "expected a function @… for the mpmd.call in the microbatch loop, found none": "our reader",
    "expected a value of mesh '…', found one of '…'": "verifier of mpmd.fragment_call",
    "function @…: expected mesh_shape … of mesh '…', found …": "verifier of mpmd.fragment_call",
    "transfer: expected equal tensors, found … and …": "verifier of mpmd.transfer",
}


def test_every_error_of_a_verifier_is_in_a_lit_test() -> None:
    written = dict.fromkeys(text for module in verifier_modules() for text in messages(module))
    directive = re.compile(r"^\s*//\s*[A-Z][A-Z0-9_-]*:(.*)$", re.MULTILINE)
    expected = "\n".join(
        re.sub(r"\{\{.*?\}\}", "…", text)
        for path in TESTS
        for text in directive.findall(path.read_text())
    )
    missing = {
        text
        for text in written
        if not re.search(".*".join(map(re.escape, text.split(ELIDED))), expected)
    }
    assert missing == SAID_BEFORE.keys()
    assert len(written) > 100
