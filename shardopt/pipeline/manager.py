"""Runs pipelines: our passes as Python, C++ passes one at a time, the verifier after each that may
have changed something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from shardopt.ir.diagnostics import DiagnosedError, Diagnostic, Handler, diagnostic
from shardopt.ir.native import run_native, verify
from shardopt.passes.base import PassContext
from shardopt.pipeline.dumps import dumps_from_environment
from shardopt.pipeline.instrumentation import Instrumentation
from shardopt.pipeline.parser import Leaf, PassStep, Pipeline, anchored, leaves, parse_pipeline
from shardopt.pipeline.scope import ops_under
from shardopt.support.collection import rare_collection
from shardopt.support.errors import UserError
from shardopt.support.spans import Seconds, clocks, collecting


class InvalidModuleError(Exception):
    """A pass of ours left a module that does not verify: a bug of the pass, not of the user."""

    def __init__(self, pass_text: str, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__(
            "\n".join([f"the module does not verify after {pass_text}", *map(str, diagnostics)])
        )
        self.pass_text, self.diagnostics = pass_text, diagnostics

    def __reduce__(self) -> tuple[type, tuple[str, tuple[Diagnostic, ...]]]:
        """Children that read files hand it over."""
        return InvalidModuleError, (self.pass_text, self.diagnostics)


@dataclass(frozen=True)
class StepResult:
    """One pass that ran: where it stood, its time and the verifier's, and the statistics it
    recorded.

    `spans` are the times of named parts of the pass (building and solving an integer program),
    inside `time`."""

    leaf: Leaf
    time: Seconds
    verify_time: Seconds
    statistics: dict[str, int | float] = field(default_factory=dict)
    spans: dict[str, Seconds] = field(default_factory=dict)


@dataclass(frozen=True)
class PipelineResult:
    """What a pipeline did, pass by pass, with every warning and remark in the order they were
    emitted."""

    pipeline: Pipeline
    steps: tuple[StepResult, ...]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def statistics(self) -> dict[tuple[str, str], int | float]:
        """`(pass name, statistic)` to value; where a pass ran twice, its last run."""
        return {
            (step.leaf.name, name): value
            for step in self.steps
            for name, value in step.statistics.items()
        }


def run_pipeline(
    module: ir.Module,
    pipeline: Pipeline | str,
    *,
    instrumentation: Sequence[Instrumentation] | None = None,
    handler: Handler | None = None,
    verify_each: bool = True,
) -> PipelineResult:
    """Run `pipeline` on `module`, in place.

    Warnings and remarks go to `handler` as they come and into the result. Raises PipelineError for
    a pipeline that does not parse, DiagnosedError for a user's error (a PassFailure, or the
    errors of a C++ pass), and InvalidModuleError or whatever a pass raised for our own bugs. After
    an exception the module is unusable. The variable SHARDOPT_DUMP_IR_TO names a directory for IR
    dumps of every pipeline."""
    parsed = parse_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
    check_options(parsed)
    run = _Run(module, (*(instrumentation or ()), *dumps_from_environment()), handler, verify_each)
    for hooks in run.instrumentation:
        hooks.begin(parsed, module)
    with rare_collection():
        steps = tuple(run.step(leaf) for leaf in leaves(parsed))
    result = PipelineResult(parsed, steps, tuple(run.diagnostics))
    for hooks in reversed(run.instrumentation):
        hooks.end(result)
    return result


def check_options(pipeline: Pipeline | str) -> None:
    """Raises UserError where an option names what is not there: before passes have searched for
    minutes, not behind them."""
    parsed = parse_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
    for leaf in leaves(parsed):
        if isinstance(leaf.step, PassStep):
            leaf.step.instance.check_options()


@dataclass
class _Run:
    """The state of one run of a pipeline."""

    module: ir.Module
    instrumentation: tuple[Instrumentation, ...]
    handler: Handler | None
    verify_each: bool
    diagnostics: list[Diagnostic] = field(default_factory=list)
    idle_anchors: set[tuple[str, ...]] = field(default_factory=set)

    def step(self, leaf: Leaf) -> StepResult:
        for hooks in self.instrumentation:
            hooks.before(leaf, self.module)
        self._warn_if_idle(leaf)
        started = clocks()
        try:
            with collecting() as spans:
                context = self._execute(leaf)
            executed = clocks()
            if self.verify_each and not context.preserved:
                _verify_after(leaf, self.module)
            verified = clocks()
        except Exception as error:
            error.add_note(f"while running {leaf.step}")
            for hooks in self.instrumentation:
                hooks.failed(leaf, error, self.module)
            raise
        # Reversed, so that hooks nest around the pass like brackets.
        for hooks in reversed(self.instrumentation):
            hooks.after(leaf, self.module)
        statistics = dict(context.statistics)
        return StepResult(leaf, executed - started, verified - executed, statistics, spans)

    def _warn_if_idle(self, leaf: Leaf) -> None:
        """Say once for every nesting that it matches no op, where mlir-opt silently does
        nothing."""
        if len(leaf.anchors) == 1 or leaf.anchors in self.idle_anchors:
            return
        if next(ops_under(self.module, leaf.anchors), None) is None:
            self.idle_anchors.add(leaf.anchors)
            inside = " in ".join(f"'{anchor}'" for anchor in reversed(leaf.anchors))
            message = (
                f"no op matches {inside}: {leaf.step} and other passes nested there do nothing"
            )
            self._emit(diagnostic("warning", self.module.operation, message))

    def _execute(self, leaf: Leaf) -> PassContext:
        context = PassContext(leaf.name, self._emit)
        if not isinstance(leaf.step, PassStep):
            run_native(self.module, anchored(leaf.step, leaf.anchors), self._emit)
            return context
        try:
            with self.module.context, ir.Location.unknown():
                leaf.step.instance.run(self.module, context)
        except (DiagnosedError, ValueError, TypeError) as error:
            context.refuse_types(self.module, error)
            raise
        except UserError as error:  # from a layer that knows no IR, such as a bad cluster file
            raise context.error(self.module.operation, f"{leaf.name}: {error}") from error
        return context

    def _emit(self, emitted: Diagnostic) -> None:
        self.diagnostics.append(emitted)
        if self.handler is not None:
            self.handler(emitted)


def _verify_after(leaf: Leaf, module: ir.Module) -> None:
    try:
        verify(module)
    except DiagnosedError as error:
        if not isinstance(leaf.step, PassStep):
            message = f"the module does not verify after the C++ pass {leaf.step}"
            blamed = Diagnostic("error", message, notes=())
            raise DiagnosedError(blamed, *error.diagnostics) from None
        raise InvalidModuleError(str(leaf.step), error.diagnostics) from None
