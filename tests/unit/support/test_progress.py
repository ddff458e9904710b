"""What a long computation says about how far it is, and how `shardopt plan` shows it."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from shardopt.support.progress import Progress, progress, watching
from shardopt.tools.plan.progress import PlanProgress


def test_the_innermost_watcher_is_told() -> None:
    outer: list[Progress] = []
    inner: list[Progress] = []
    progress(1, 2, "nobody looks")
    with watching(outer.append):
        progress(0, 2, "meshes")
        with watching(inner.append):
            progress(3, 9, "candidates")
        progress(1, 2, "meshes")
    progress(2, 2, "nobody looks")
    assert outer == [Progress(0, 2, "meshes"), Progress(1, 2, "meshes")]
    assert inner == [Progress(3, 9, "candidates")]


def shown(console: Console) -> str:
    with PlanProgress(8, console) as bars, watching(bars.inside):
        bars.phase("stage")
        progress(61, 240, "stage candidates on m0[x=2]")
        console.print("a message")
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_terminal_shows_the_phase_and_what_is_solved_in_it() -> None:
    text = shown(Console(file=StringIO(), force_terminal=True, width=120))
    assert all(part in text for part in ("stage", "1/8", "61/240", "stage candidates on m0[x=2]"))


def test_elsewhere_nothing_is_shown() -> None:
    assert shown(Console(file=StringIO(), force_terminal=False)) == "a message\n"
