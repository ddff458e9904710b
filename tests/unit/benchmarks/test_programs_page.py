"""The page of programs can be read back, so that a few rows can be made anew."""

from __future__ import annotations

from pathlib import Path

from benchmarks.programs.__main__ import merged
from benchmarks.programs.table import page, read_page

PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "programs.md"


def test_the_page_that_is_read_is_the_page_that_was_written() -> None:
    text = PAGE.read_text()
    results = read_page(text)
    assert page(results, len(results), ()) == text


def test_settings_that_are_run_anew_replace_those_of_the_page() -> None:
    before = [{"setting": "1x1", "kind": "works"}, {"setting": "2xB", "kind": "refused"}]
    after = [{"setting": "2xB", "kind": "works"}]
    assert merged(before, after) == [before[0], after[0]]
