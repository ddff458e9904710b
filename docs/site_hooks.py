"""Hooks of mkdocs: links of pages to files outside docs/ (the lit tests of a pass, say) lead to
copies in the site.

On GitHub and in an editor such a link leads to the file itself. The site has only what stands in
docs/, so the file is added to it under `source/`, as text that a browser shows."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?<=\]\()(?:\.\./)+[^)\s#]+(?=\))")


def on_files(files: Files, config: Any) -> Files:
    """Add every file of the repository outside docs/ that a page links to."""
    outside = {
        path
        for page in files.documentation_pages()
        for path in _outside(page.src_uri, page.content_string)
    }
    for path in sorted(outside):
        copy = File.generated(config, _copy_of(path), abs_src_path=str(ROOT / path))
        files.append(copy)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to files outside docs/ lead to their copies."""
    here = posixpath.dirname(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        path = _path(page.file.src_uri, match[0])
        return match[0] if path is None else posixpath.relpath(_copy_of(path), here or ".")

    return _LINK.sub(link, markdown)


def _outside(page: str, markdown: str) -> Iterator[str]:
    for target in _LINK.findall(markdown):
        path = _path(page, target)
        if path is not None:
            yield path


def _path(page: str, target: str) -> str | None:
    """The file that a link of a page of docs/ leads to, from the root of the source tree; None
    inside of docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if path.startswith("docs" + os.sep) or not (ROOT / path).is_file() else path


def _copy_of(path: str) -> str:
    return f"source/{path}.txt"
