"""What a pass is: a frozen dataclass whose fields are its options and whose `run` changes a module
in place.

    @dataclass(frozen=True)
    class ChooseStages(Pass):
        name = "shardopt-choose-stages"
        summary = "choose pipeline stages and their submeshes"
        num_stages: int = option(0, help="number of pipeline stages; 0 lets the planner choose")

        def run(self, module: ir.Module, pm: PassContext) -> None:
            if bad:
                raise pm.error(op, "expected …, found …", notes=[(other, "…")])

`str(ChooseStages(num_stages=2))` is `shardopt-choose-stages{num-stages=2}`, which the pipeline
parser reads back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, TypeVar

from jaxlib.mlir import ir

from shardopt.ir.diagnostics import (
    DiagnosedError,
    Diagnostic,
    Handler,
    Located,
    RemarkCategory,
    Severity,
    diagnostic,
)
from shardopt.passes.options import OptionError, option, parse_options, plan_option, print_options

__all__ = ["Pass", "PassContext", "PassFailure", "option", "plan_option"]

P = TypeVar("P", bound="Pass")

# One cause (a missed inlining, a symbolic dimension) often repeats on thousands of operations.
_MAX_REPORTED = 5


class PassFailure(DiagnosedError):
    """An error of the user that a pass diagnosed: one line, exit code 1, no output file."""


@dataclass
class PassContext:
    """What the manager lends to a running pass: where its messages and statistics go. Usable alone
    in tests."""

    pass_name: str = ""
    handler: Handler | None = None
    diagnostics: list[Diagnostic] = field(default_factory=list)
    statistics: dict[str, int | float] = field(default_factory=dict)
    preserved: bool = False

    def error(
        self, where: Located, message: str, notes: Sequence[tuple[Located, str]] = ()
    ) -> PassFailure:
        """The exception to raise for a user's error at `where`; each note names another op
        involved."""
        return PassFailure(diagnostic("error", where, message, notes))

    def refuse(self, errors: Iterable[tuple[Located, str]]) -> None:
        """Raise the first of the errors that a verifier found, if there is one, with the next few
        as notes."""
        reported = list(islice(errors, _MAX_REPORTED))
        if reported:
            raise self.error(*reported[0], notes=reported[1:])

    def refuse_types(self, module: ir.Module, error: Exception) -> None:
        """Raise what is wrong with the types of attributes of ours, if that may be why a pass ended
        with `error`, on an edited file perhaps."""
        from shardopt.forms.attribute_types import is_of_types, type_violations

        if is_of_types(error):
            with module.context:
                self.refuse(type_violations(module))

    def warning(
        self, where: Located, message: str, notes: Sequence[tuple[Located, str]] = ()
    ) -> None:
        self._emit("warning", where, message, notes)

    def remark(
        self,
        kind: str,
        where: Located,
        message: str,
        notes: Sequence[tuple[Located, str]] = (),
        *,
        category: RemarkCategory = "missed",
    ) -> None:
        """Say what was decided ("passed"), skipped ("missed") or found ("analysis").

        Users filter by the category and by `kind`, a name such as "no-sharding-rule".
        """
        self._emit("remark", where, message, notes, kind, category)

    def statistic(self, name: str, value: int | float) -> None:
        """Record a number about this run of the pass; a second value under one name replaces the
        first."""
        self.statistics[name] = value

    def preserve(self) -> None:
        """Say that the module is as it was before the pass, which spares it the verifier."""
        self.preserved = True

    def _emit(
        self,
        severity: Severity,
        where: Located,
        message: str,
        notes: Sequence[tuple[Located, str]],
        kind: str = "",
        category: RemarkCategory | None = None,
    ) -> None:
        emitted = diagnostic(severity, where, message, notes, kind, category)
        self.diagnostics.append(emitted)
        if self.handler is not None:
            self.handler(emitted)


class Pass(ABC):
    """Base of all passes, which are frozen dataclasses; a `ValueError` from `__post_init__` rejects
    option values."""

    name: ClassVar[str]
    summary: ClassVar[str]
    anchor: ClassVar[str] = "builtin.module"

    @abstractmethod
    def run(self, module: ir.Module, pm: PassContext) -> None:
        """Change `module` in place. Raise `pm.error(…)` for a user's error; other exceptions are
        our own bugs."""

    def check_options(self) -> None:  # noqa: B027
        """Asked before any pass of a pipeline runs. Raises UserError where what an option names is
        not there: a cluster, a file, a schedule. Most passes name nothing outside of the module."""

    @classmethod
    def parse(cls: type[P], options: str = "") -> P:
        """The pass with options from text such as `num-stages=2 schedule=1f1b`. Raises
        OptionError."""
        values = parse_options(cls, options, cls.name)
        try:
            return cls(**values)
        except ValueError as error:
            raise OptionError(f"{cls.name}: {error}") from error

    def __str__(self) -> str:
        options = print_options(self)
        return f"{self.name}{{{options}}}" if options else self.name
