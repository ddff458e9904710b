"""What `shardopt plan` shows while it works: the phase, what is being solved inside of it, and the
time so far."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.text import Text

from shardopt.support.progress import Progress


class _Clock(TimeElapsedColumn):
    """The time since the beginning, on the first line only."""

    def render(self, task: Task) -> Text:
        return super().render(task) if task.id == 0 else Text()


class PlanProgress:
    """Two lines on a terminal; nothing elsewhere.

    stage    ━━━━━━━━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━━━━━    4/8  0:00:07
             ━━━━━━━━━━╺━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 61/240          stage candidates
    """

    def __init__(self, phases: int, console: Console | None = None, prefix: str = "") -> None:
        console = console or Console(stderr=True)
        columns = (
            TextColumn("{task.description:>10}"),
            BarColumn(),
            TextColumn("{task.fields[count]:>9}"),
            _Clock(),
            TextColumn("{task.fields[what]}", markup=False),
        )
        self._bars = Bars(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._prefix = prefix
        self._phases = self._bars.add_task(f"{prefix}reading", total=phases, count="", what="")
        self._inner = self._bars.add_task("", total=None, visible=False, count="", what="")
        self._total, self._begun = phases, 0

    def phase(self, name: str) -> None:
        """A phase begins."""
        self._begun += 1
        count = f"{self._begun}/{self._total}"
        text = f"{self._prefix}{name}"
        self._bars.update(self._phases, description=text, completed=self._begun - 1, count=count)
        self._bars.update(self._inner, visible=False)

    def inside(self, progress: Progress) -> None:
        """Work inside of the phase is so far."""
        known = progress.total > 0
        count = f"{progress.done}/{progress.total}" if known else ""
        total = progress.total if known else None
        self._bars.update(
            self._inner,
            visible=True,
            total=total,
            completed=progress.done,
            count=count,
            what=progress.what,
        )

    def __enter__(self) -> PlanProgress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()
