"""Parts of a page that commands write: what stands between two comments that name the part."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "alpa-figures.md"


def write_part(name: str, text: str, page: Path = PAGE) -> None:
    """Put `text` in the place of the part. Raises ValueError where the page has no such part."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, opening, rest = page.read_text().partition(begin)
    _, closing, after = rest.partition(end)
    if not opening or not closing:
        raise ValueError(f"{page}: expected '{begin.strip()}' and '{end}', one behind the other")
    page.write_text(f"{before}{begin}{text.rstrip()}\n{end}{after}")
