"""What a person sees while a call plans: the phase that runs, in one line that goes away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def planning_progress(name: str) -> Iterator[Callable[[str], None] | None]:
    """A function to tell phases to, which shows them on standard error; None where that is no
    terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with console.status(f"planning {name}") as status:
        yield lambda phase: status.update(f"planning {name}: {phase}")
