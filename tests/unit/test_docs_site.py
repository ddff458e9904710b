"""The site of the documentation: its navigation has every page, the page of commands is up to date,
pages that are named in code exist.

`make site` builds it with --strict; what mkdocs would find is found here without it, links by
test_docs.py."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.tools import command_line_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PARTS = ("guide", "concepts", "reference", "evidence")
DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)
# What a comment or message of the code calls a page.
NAMED_PAGE = re.compile(r"\bdocs/[\w/-]+\.md\b")


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name Python objects that the test need not make."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)


def _pages(nav: list[Any]) -> Iterator[str]:
    for item in nav:
        for value in item.values() if isinstance(item, dict) else [item]:
            yield from [value] if isinstance(value, str) else _pages(value)


def test_the_navigation_has_every_page_once(config: dict[str, Any]) -> None:
    pages = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
    assert sorted(_pages(config["nav"])) == pages


def test_the_site_has_four_parts_that_begin_with_an_overview(config: dict[str, Any]) -> None:
    home, *parts = config["nav"]
    assert list(_pages([home])) == ["index.md"]
    for part, name in zip(parts, PARTS, strict=True):
        first, *others = _pages([part])
        assert first == f"{name}/index.md"
        assert {Path(page).parts[0] for page in others} == {name}


@pytest.mark.parametrize("part", PARTS)
def test_an_overview_links_to_every_page_of_its_part(part: str) -> None:
    text = (DOCS / part / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in (DOCS / part).glob("*.md")} - {"index.md"}
    assert {page for page in pages if f"({page})" not in text} <= {
        "glossary.md"
    } and "](index.md" not in text


def test_the_api_page_names_what_is_there() -> None:
    from importlib import import_module

    names = DIRECTIVE.findall((DOCS / "reference" / "api.md").read_text(encoding="utf-8"))
    assert len(names) == len(set(names)) > 0
    missing = []
    for name in names:
        module, _, attribute = name.rpartition(".")
        if not hasattr(import_module(module), attribute):
            missing.append(name)
    assert missing == []


def test_the_api_page_has_all_that_the_package_offers() -> None:
    import shardopt

    names = DIRECTIVE.findall((DOCS / "reference" / "api.md").read_text(encoding="utf-8"))
    assert {f"shardopt.{name}" for name in shardopt.__all__} - {"shardopt.Parallelized"} <= set(
        names
    )


def test_the_page_of_commands_is_up_to_date() -> None:
    written = command_line_page.PAGE.read_text(encoding="utf-8")
    assert written == command_line_page.page(), "run python -m tests.unit.tools.command_line_page"


def test_pages_that_the_code_names_exist() -> None:
    sources = [
        path
        for folder in ("shardopt", "runtime", "benchmarks", "tests")
        for path in (ROOT / folder).rglob("*.py")
    ]
    named = {
        (str(path.relative_to(ROOT)), page)
        for path in sources
        for page in NAMED_PAGE.findall(path.read_text(encoding="utf-8"))
    }
    assert sorted((path, page) for path, page in named if not (ROOT / page).exists()) == []


def test_tables_of_docstrings_become_definition_lists() -> None:
    pytest.importorskip("griffe", reason="comes with the extra `docs`")
    spec = importlib.util.spec_from_file_location("docstring_tables", DOCS / "docstring_tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table = (
        "a        text of a,\n         two lines\nb, c     of two\nlong,    of two\nnames    "
        "below each other"
    )
    text = "Two words  of a sentence\nthat goes on."
    lists = (
        "`a`\n:   text of a, two lines\n\n`b, c`\n:   of two\n\n`long, names`\n:   of two "
        "below each other"
    )
    assert (
        module.with_definition_lists(f"Head.\n\n{table}\n\n{text}") == f"Head.\n\n{lists}\n\n{text}"
    )
