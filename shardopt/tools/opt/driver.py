"""What shardopt-opt does with its input: split it, and read, run and print every part."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from jaxlib.mlir import ir

from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import (
    DiagnosedError,
    Diagnostic,
    diagnostic,
    native_errors_raised,
)
from shardopt.ir.formats import STDIO, decoded, format_of
from shardopt.ir.io import check_output, encode_module, load_module, write_output
from shardopt.pipeline.manager import run_pipeline
from shardopt.pipeline.parser import ROOT_ANCHOR, expanded, leaves
from shardopt.pipeline.reproducer import (
    PassTracker,
    Reproduction,
    make_reproducer,
    part_of,
    reproducer_text,
)
from shardopt.pipeline.statistics import (
    PassFigures,
    pass_figures,
    statistics_json,
    statistics_report,
    summed,
)
from shardopt.pipeline.timing import (
    Timed,
    merged,
    timing_json,
    timing_report,
    timing_tree,
    with_rest,
)
from shardopt.support.errors import UserError
from shardopt.support.spans import Seconds, clocks
from shardopt.tools.common import EXIT_BUG, EXIT_OK, EXIT_USER_ERROR, report_bug
from shardopt.tools.opt.options import NAME, PassFlag
from shardopt.tools.opt.reporter import Reporter, note
from shardopt.tools.opt.roundtrip import verify_roundtrip
from shardopt.tools.opt.setup import Watchers, chosen_task, make_watchers, output_form, output_style
from shardopt.tools.opt.splitting import near_misses, split_input
from shardopt.tools.supervisor import Trace

# MLIR says this about the recipe inside a reproducer, which is read here and not there.
_KNOWN_RESOURCE = "ignoring unknown external resources for 'mlir_reproducer'"


@dataclass(frozen=True)
class Part:
    """One module of the input; `source` is its bytes, or the path when the input is one file and
    not split, and `first_line` where it begins in the input."""

    number: int
    source: bytes | str
    text: str
    first_line: int = 1


def expect_module(text: str, name: str, context: ir.Context) -> None:
    """Raises DiagnosedError unless one builtin.module holds everything."""
    with native_errors_raised(context, also=ValueError):
        top = ir.Operation.parse(text, source_name=name, context=context)
    if top.operation.name != ROOT_ANCHOR:
        message = f"expected a {ROOT_ANCHOR} around everything, found '{top.operation.name}'"
        raise DiagnosedError(diagnostic("error", top, message))


@dataclass
class Driver:
    """One run of the tool on the bytes of its input."""

    options: argparse.Namespace
    flags: tuple[PassFlag, ...]
    data: bytes
    trace: Trace = field(default_factory=Trace)
    started: Seconds = field(default_factory=clocks)
    timings: list[tuple[Timed, ...]] = field(default_factory=list)
    figures: list[tuple[PassFigures, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name: str = self.options.input
        check_output(self.options.output)
        self.task = chosen_task(self.options, self.flags, self.data)
        self.form = output_form(self.options)
        self.parts = self._split()
        self.watchers = self._watch(self.parts[0])  # early, since options may be wrong

    def run(self) -> int:
        """Process all parts, write, and return the exit code: the worst of the parts."""
        if self.options.dump_pass_pipeline:
            print(self._pipeline_dump(), file=sys.stderr)
        done = [self._process(part) for part in self.parts]
        worst = max(code for code, _ in done)
        started = clocks()
        if worst == EXIT_OK or (len(done) > 1 and self.options.output == STDIO):
            marker = f"{self.options.output_split_marker}\n".encode()
            self.trace.note(doing="write")
            write_output(marker.join(output for _, output in done), self.options.output)
        self.timings.append((Timed("Output", clocks() - started),))
        self._print_figures()
        return worst

    def _split(self) -> tuple[Part, ...]:
        text = decoded(self.data)
        if self.options.split_input_file is None:
            # A pipe cannot be read again.
            is_file = self.name != STDIO and Path(self.name).is_file()
            return (Part(1, self.name if is_file else self.data, text or ""),)
        if text is None:
            raise UserError(
                f"--split-input-file expects text, found a binary file in '{self.name}'"
            )
        marker = self.options.split_input_file
        for warning in near_misses(text, self.name, marker):
            Reporter(self.options, self.name, text)(warning)
        chunks = enumerate(split_input(text, marker), start=1)
        return tuple(
            Part(number, chunk.text.encode(), chunk.text, chunk.first_line)
            for number, chunk in chunks
        )

    def _process(self, part: Part) -> tuple[int, bytes]:
        """The exit code and the output of one part; what went wrong has been reported."""
        self.watchers = self._watch(part)
        report = Reporter(
            self.options, self.name, None if isinstance(part.source, str) else part.text
        )
        code, output = EXIT_OK, b""
        try:
            output = self._compile(part, report)
        except UserError as error:
            code = EXIT_USER_ERROR
            report.error(error)
            if not self.options.verify_diagnostics:
                self._say_how_to_rerun(part)
        except Exception:
            code = EXIT_BUG
            report_bug(NAME)
            self._say_how_to_rerun(part, is_bug=True)
        if self.options.verify_diagnostics and code != EXIT_BUG:
            code = EXIT_USER_ERROR if report.unexpected(part.text, part.first_line) else EXIT_OK
        return code, output

    def _compile(self, part: Part, report: Reporter) -> bytes:
        started = clocks()
        self.trace.note(doing="read", part=part.number)
        module = self._load(part, report)
        if self.options.verify_roundtrip:
            verify_roundtrip(module)
        if path := self.options.mlir_generate_reproducer:
            recipe = Reproduction(str(self.task.pipeline), self.task.verify_each)
            write_output(reproducer_text(module, recipe).encode(), path)
        parsed = clocks()
        result = run_pipeline(
            module,
            self.task.pipeline,
            instrumentation=self.watchers.all,
            handler=report,
            verify_each=self.task.verify_each,
        )
        finished = clocks()
        self.trace.note(doing="print")
        output = encode_module(
            module, self.form, output_style(self.options), self.options.emit_bytecode_version
        )
        before = Timed("Parser", parsed - started)
        after = Timed("Output", clocks() - finished)
        self.timings.append(timing_tree(result, (before,), (after,)))
        if self.watchers.counter is not None:
            self.figures.append(pass_figures(result, self.watchers.counter))
        return output

    def _load(self, part: Part, report: Reporter | None = None) -> ir.Module:
        context = make_context()
        context.allow_unregistered_dialects = self.options.allow_unregistered_dialect

        def handle(diagnostic: Diagnostic) -> None:
            if report is not None and diagnostic.message != _KNOWN_RESOURCE:
                report(diagnostic)

        is_text = format_of(self.data) == "text"
        if is_text and self.options.no_implicit_module:
            expect_module(part.text, self.name, context)
        with nullcontext() if is_text else self.trace.reading(len(self.data)):
            return load_module(part.source, context, name=self.name, handler=handle)

    def _watch(self, part: Part) -> Watchers:
        progress = PassTracker(
            lambda index: self.trace.note(doing="pass", part=part.number, index=index)
        )
        folder = str(part.number) if len(self.parts) > 1 else ""
        return make_watchers(self.options, self.task.pipeline, progress, folder)

    # ---- reproducers ----

    def explain_crash(self, number: int, index: int) -> int:
        """After C++ code killed a process in pass `index` of a part: write a reproducer and say how
        to run it."""
        path = self.write_reproducer(self.parts[number - 1], index)
        step = leaves(self.task.pipeline)[index].step
        command = f"{NAME} {shlex.quote(path)} --run-reproducer"
        note(self.options, f"to run {step} again: {command}")
        return EXIT_BUG

    def _say_how_to_rerun(self, part: Part, is_bug: bool = False) -> None:
        """After a pass has failed: the one command that runs it again."""
        progress = self.watchers.progress
        if progress.failed_leaf is None and not is_bug:
            return
        step = progress.failed_leaf.step if progress.failed_leaf is not None else "everything"
        if is_bug or self.options.mlir_pass_pipeline_crash_reproducer:
            path = self.write_reproducer(
                part, progress.index if progress.failed_leaf is not None else None
            )
            command = (
                f"{NAME} {shlex.quote(path)} --run-reproducer" if path else self._command(part)
            )
        else:
            command = self._command(part)
        note(self.options, f"to run {step} again: {command}")

    def _command(self, part: Part) -> str:
        """The input with the passes up to the failed one, or the dump before that with it alone."""
        progress, tree = self.watchers.progress, self.watchers.tree
        split = self.options.split_input_file
        if tree is not None and tree.last_file is not None and progress.leaf is not None:
            words = [str(tree.last_file)]
            pipeline = part_of(self.task.pipeline, progress.index + 1, progress.index)
        else:
            words = [self.name] if split is None else [self.name, f"--split-input-file={split}"]
            pipeline = part_of(self.task.pipeline, progress.index + 1)
        if self.options.allow_unregistered_dialect:
            words.append("--allow-unregistered-dialect")
        return " ".join(
            [NAME, *map(shlex.quote, words), f"--pass-pipeline={shlex.quote(pipeline)}"]
        )

    def write_reproducer(self, part: Part, index: int | None) -> str:
        """Write a reproducer where the user asked for it, or else to a temporary file; its path, ""
        if it failed.

        `index` is the number of the pass; a local reproducer is made of it unless a whole one was
        asked for."""
        target = self.options.mlir_pass_pipeline_crash_reproducer
        is_local = target is None or self.options.mlir_pass_pipeline_local_reproducer
        try:
            text = self._reproducer(part, index if is_local else None)
            if target is not None:
                write_output(text.encode(), target)
                return str(target)
            handle, path = tempfile.mkstemp(prefix=f"{NAME}-reproducer-", suffix=".mlir")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
        except Exception as error:  # of the input itself: there is nothing better to give
            note(self.options, f"no reproducer could be written: {error}")
            return ""
        return path

    def _reproducer(self, part: Part, index: int | None) -> str:
        pipeline, verify_each = self.task.pipeline, self.task.verify_each
        try:
            return make_reproducer(lambda: self._load(part), pipeline, index, verify_each)
        except Exception:  # the passes before do not run as they did: give the whole run
            if index is None:
                raise
            return make_reproducer(lambda: self._load(part), pipeline, None, verify_each)

    # ---- reports ----

    def _pipeline_dump(self) -> str:
        pipeline = self.task.pipeline
        lines = [f"Pass Manager with {len(leaves(pipeline))} passes:", str(pipeline)]
        if (plain := expanded(pipeline)) != lines[1]:
            lines += ["Without phases:", plain]
        return "\n".join(lines)

    def _print_figures(self) -> None:
        options, as_json = self.options, self.options.mlir_output_format == "json"
        if options.mlir_timing:
            timing = timing_json if as_json else timing_report
            tree = with_rest(merged(self.timings), clocks() - self.started)
            print(timing(tree, options.mlir_timing_display), file=sys.stderr)
        if options.mlir_pass_statistics:
            statistics = statistics_json if as_json else statistics_report
            print(
                statistics(summed(self.figures), options.mlir_pass_statistics_display),
                file=sys.stderr,
            )
