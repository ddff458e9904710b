"""How a pipeline fails on a module, in words that stay the same while both shrink."""

from __future__ import annotations

import importlib
import json
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from traceback import extract_tb
from typing import Literal, TypeAlias

from jaxlib.mlir import ir

from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import DiagnosedError
from shardopt.ir.io import load_module
from shardopt.pipeline.manager import InvalidModuleError, run_pipeline
from shardopt.pipeline.parser import Leaf
from shardopt.pipeline.reproducer import PassTracker
from shardopt.reduce.candidate import Candidate
from shardopt.reduce.isolation import isolated
from shardopt.support.errors import UserError

Kind: TypeAlias = Literal["error", "bug", "crash", "hang"]

# What a smaller module changes in a message: names in quotes, symbols, values, types, numbers.
_VARYING = (
    (re.compile(r"'[^']*'"), "'…'"),
    (re.compile(r"[@%][\w.$-]+(?:#\d+)?"), "…"),
    (re.compile(r"!?\b[a-z]\w*(?:\.\w+)*<[^\s]*>+"), "…"),
    (re.compile(r"(?<![A-Za-z_])[-+]?\d+(?:[.,x]\d+)*(?:e[-+]?\d+)?"), "N"),
    (re.compile(r"(?:N|…|'…')(?:, (?:N|…|'…'))+"), "…"),  # lists of them
)
_OURS = "shardopt"


@dataclass(frozen=True)
class Failure:
    """`step` is the pass that ran, and `place` the function that raised (of bugs)."""

    kind: Kind
    step: str
    message: str
    place: str = ""

    def __str__(self) -> str:
        first = self.message.partition("\n")[0]
        return f"{self.kind} in {self.step}: {first}" + (f" ({self.place})" if self.place else "")

    def is_like(self, other: Failure) -> bool:
        """The same fault: the same kind, pass and place, and a message that differs at most in what
        varies with the module."""
        same = (self.kind, self.step, self.place) == (other.kind, other.step, other.place)
        return same and core_of(self.message) == core_of(other.message)


def core_of(message: str) -> str:
    """The first line without what varies: later ones quote the module."""
    core = message.partition("\n")[0]
    for pattern, stand_in in _VARYING:
        core = pattern.sub(stand_in, core)
    return core


def failure_of(
    candidate: Candidate, seconds: float, *, on_modules: Callable[[list[str]], None] | None = None
) -> Failure | None:
    """Read the candidate's file in a child and run it there; None where it succeeds.

    `on_modules` hears which of our modules the child loaded."""

    def work(write: Callable[[bytes], None]) -> None:
        def line(**what: object) -> None:
            write(json.dumps(what).encode() + b"\n")

        failure = _run(candidate, lambda step: line(step=step))
        loaded = [name for name in sys.modules if name.partition(".")[0] == _OURS]
        line(failure=None if failure is None else asdict(failure), loaded=loaded)

    ended = isolated(work, seconds)
    said = [json.loads(line) for line in ended.output.splitlines() if line.endswith(b"}")]
    step = next((line["step"] for line in reversed(said) if "step" in line), "reading")
    if ended.timed_out:
        return Failure("hang", step, "it does not finish")
    if ended.signal:
        return Failure("crash", step, signal.Signals(ended.signal).name)
    if not said or "failure" not in said[-1]:
        return Failure("crash", step, "it ended without a word")
    if on_modules is not None:
        on_modules(said[-1]["loaded"])
    found = said[-1]["failure"]
    return None if found is None else Failure(**found)


def preload(names: list[str]) -> None:
    """Load here what every child would load again."""
    for name in sorted(names):
        importlib.import_module(name)


@dataclass
class _Steps(PassTracker):
    """Says the name of every pass before it runs."""

    say: Callable[[str], None] | None = None

    def before(self, leaf: Leaf, module: ir.Module) -> None:
        super().before(leaf, module)
        if self.say is not None:
            self.say(leaf.name)


def _run(candidate: Candidate, say: Callable[[str], None]) -> Failure | None:
    steps = _Steps(say=say)
    try:
        module = load_module(candidate.file_text.encode(), make_context())
        run_pipeline(
            module,
            candidate.pipeline,
            instrumentation=(steps,),
            verify_each=candidate.verify_each,
        )
    except DiagnosedError as error:  # where it was found changes with every line
        return Failure("error", _name(steps), error.diagnostics[0].message)
    except UserError as error:
        return Failure("error", _name(steps), str(error))
    except InvalidModuleError as error:
        # its first line names the options of the pass, which may go
        message = error.diagnostics[0].message if error.diagnostics else ""
        return Failure("bug", _name(steps), f"{type(error).__name__}: {message}")
    except Exception as error:
        return Failure("bug", _name(steps), f"{type(error).__name__}: {error}", _place(error))
    return None


def _name(steps: _Steps) -> str:
    return "reading" if steps.leaf is None else steps.leaf.name


def _place(error: Exception) -> str:
    """The innermost function of ours: lines move from version to version."""
    frames = [frame for frame in extract_tb(error.__traceback__) if _OURS in frame.filename]
    return frames[-1].name if frames else ""
