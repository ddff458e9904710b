"""Pipelines as text and as objects.

    builtin.module(shardopt-import{unroll=true},func.func(canonicalize,cse),shardopt-stage{num-stages=2
    devices=0,1})

A name is looked up among our passes, then among the phases, then among the C++ passes; `anchor(…)`
nests. Everything is checked while parsing, so that a misspelled option is found before the first
pass has run. `str(pipeline)` parses back to an equal object."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from shardopt.ir.native import (
    COMMON_NATIVE_PASSES,
    is_native_pass,
    native_options,
    native_pipeline_error,
    native_text,
)
from shardopt.passes.base import Pass
from shardopt.passes.options import OptionError, balanced_end, split_options
from shardopt.passes.registry import PASSES, PREFIX, RUN_INSTEAD, pass_class
from shardopt.pipeline.phases import PHASE_NAMES, expand_phase, find_phase
from shardopt.support.errors import UserError
from shardopt.support.suggestions import unknown_name

ROOT_ANCHOR = "builtin.module"
NAME = re.compile(r"[A-Za-z_][\w.$-]*")


class PipelineError(UserError):
    """A pipeline that does not parse; the message shows the line with a caret under the place."""

    def __init__(self, reason: str, text: str, offset: int) -> None:
        start = text.rfind("\n", 0, offset) + 1
        line = text[start:].partition("\n")[0]
        caret = "" if not line.strip() else f"\n  {line}\n  {' ' * (offset - start)}^"
        super().__init__(f"pipeline: {reason}{caret}")
        self.reason = reason
        self.offset = offset


@dataclass(frozen=True)
class PassStep:
    """One of our passes with its options."""

    instance: Pass

    @property
    def name(self) -> str:
        return self.instance.name

    def __str__(self) -> str:
        return str(self.instance)


@dataclass(frozen=True)
class NativeStep:
    """A C++ pass with the text of its options, as C++ will read it."""

    name: str
    options: str = ""

    def __str__(self) -> str:
        return f"{self.name}{{{self.options}}}" if self.options else self.name


@dataclass(frozen=True)
class PhaseStep:
    """A phase of ours and the steps it stands for."""

    name: str
    options: str
    steps: tuple[Step, ...] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.name}{{{self.options}}}" if self.options else self.name


@dataclass(frozen=True)
class NestStep:
    """Steps that run on every op called `anchor` directly below; a whole pipeline is one on
    `builtin.module`."""

    anchor: str
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        return self.anchor

    def __str__(self) -> str:
        return f"{self.anchor}({','.join(map(str, self.steps))})"


Step: TypeAlias = "PassStep | NativeStep | PhaseStep | NestStep"
Pipeline: TypeAlias = NestStep


@dataclass(frozen=True)
class Leaf:
    """A pass of a pipeline with what surrounds it: the anchors it runs under, and the phases and
    nests as text."""

    step: PassStep | NativeStep
    anchors: tuple[str, ...] = (ROOT_ANCHOR,)
    groups: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.step.name


def leaves(pipeline: Pipeline) -> tuple[Leaf, ...]:
    """The passes of a pipeline in the order in which they run."""
    return tuple(_leaves(pipeline.steps, (pipeline.anchor,), ()))


def leaves_of(step: Step) -> tuple[Leaf, ...]:
    """The passes that one step of a pipeline stands for."""
    return tuple(_leaves((step,), (ROOT_ANCHOR,), ()))


def expanded(pipeline: Pipeline) -> str:
    """The pipeline as text with every phase and every C++ pipeline replaced by its passes, and all
    options of C++ passes written out: what `mlir-opt` prints of its own."""
    return _expanded(pipeline, ())


def _expanded(step: Step, anchors: tuple[str, ...]) -> str:
    if isinstance(step, NativeStep):
        return native_text(str(step), anchors)
    if isinstance(step, PassStep):
        return str(step)
    if isinstance(step, NestStep):
        anchors = (*anchors, step.anchor)
    inner = ",".join(filter(None, (_expanded(part, anchors) for part in step.steps)))
    return f"{step.anchor}({inner})" if isinstance(step, NestStep) else inner


def _leaves(
    steps: tuple[Step, ...], anchors: tuple[str, ...], groups: tuple[str, ...]
) -> Iterator[Leaf]:
    for step in steps:
        if isinstance(step, NestStep):
            yield from _leaves(step.steps, (*anchors, step.anchor), (*groups, step.anchor))
        elif isinstance(step, PhaseStep):
            yield from _leaves(step.steps, anchors, (*groups, str(step)))
        else:
            yield Leaf(step, anchors, groups)


def parse_pipeline(text: str) -> Pipeline:
    """The pipeline behind `text`; a bare list of steps stands for `builtin.module(list)`. Raises
    PipelineError."""
    parser = _Parser(text)
    whole = _is_anchored(text)
    steps = parser.parse_steps(() if whole else (ROOT_ANCHOR,), end="")
    only = steps[0] if len(steps) == 1 else None
    return only if whole and isinstance(only, NestStep) else NestStep(ROOT_ANCHOR, steps)


def _is_anchored(text: str) -> bool:
    """True for one `builtin.module(…)`; false for a list of steps, even if that begins with a
    nested module."""
    opening = re.match(rf"\s*{re.escape(ROOT_ANCHOR)}\s*(?=\()", text)
    if opening is None:
        return False
    try:
        return not text[balanced_end(text, opening.end()) :].strip()
    except OptionError:
        return True  # a bracket is missing: the parser says where


def parse_flag(name: str, options: str) -> Step:
    """One step given as a command-line flag `--name=options`. C++ passes that run on functions are
    nested for you."""
    name = RUN_INSTEAD.get(name, name)
    if name not in PASSES and find_phase(name) is None and is_native_pass(name):
        text = f"{name}{{{options}}}" if options else name
        nested = native_pipeline_error(f"{ROOT_ANCHOR}({text})") and not native_pipeline_error(
            f"func.func({text})"
        )
        return parse_pipeline(f"func.func({text})" if nested else text).steps[0]
    return parse_pipeline(f"{name}{{{options}}}" if options else name).steps[0]


_NO_OPTION = re.compile(r"no such option ([^\s;]+)")


class _Parser:
    """Recursive descent over the text; `pos` is the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0

    def parse_steps(self, anchors: tuple[str, ...], end: str) -> tuple[Step, ...]:
        """`step, step, …` up to `end` (")", or "" for the end of the text); `anchors` is the path
        of nestings."""
        steps: list[Step] = []
        if self._peek() == end:
            return ()
        while True:
            steps.append(self._parse_step(anchors))
            token = self._peek()
            if token == end:
                return tuple(steps)
            if token != ",":
                expected = "',' or ')'" if end else "',' or the end of the pipeline"
                raise self._error(f"expected {expected}, found {_quoted(token)}")
            self.pos += 1

    def _parse_step(self, anchors: tuple[str, ...]) -> Step:
        self._peek()
        match = NAME.match(self.text, self.pos)
        if match is None:
            raise self._error(
                f"expected the name of a pass or phase, found {_quoted(self._peek())}"
            )
        start, name = self.pos, match[0]
        self.pos = match.end()
        following = self._peek()
        if following == "(":
            return self._parse_nest(name, anchors)
        options_start = self.pos + 1
        options = self._take_options() if following == "{" else ""
        try:
            return self._resolve(name, options, anchors, start)
        except OptionError as error:
            offset = options_start + error.offset if options and error.offset >= 0 else start
            raise self._error(str(error), offset) from error

    def _parse_nest(self, anchor: str, anchors: tuple[str, ...]) -> NestStep:
        self.pos += 1
        steps = self.parse_steps((*anchors, anchor), end=")")
        self.pos += 1
        return NestStep(anchor, steps)

    def _take_options(self) -> str:
        try:
            end = balanced_end(self.text, self.pos)
        except OptionError as error:
            raise self._error(str(error), error.offset) from error
        options = self.text[self.pos + 1 : end - 1]
        self.pos = end
        return options

    def _resolve(self, name: str, options: str, anchors: tuple[str, ...], start: int) -> Step:
        name = RUN_INSTEAD.get(name, name)
        ours = name in PASSES or find_phase(name) is not None
        if ours and anchors != (ROOT_ANCHOR,):
            raise self._error(
                f"'{name}' runs on {ROOT_ANCHOR}, it cannot be nested under {anchors[-1]}", start
            )
        if name in PASSES:
            return PassStep(pass_class(name).parse(options))
        if phase := find_phase(name):
            return self._phase(name, expand_phase(phase, options), options, start)
        return self._native(NativeStep(name, options.strip()), anchors, start)

    def _phase(self, name: str, expansion: str, options: str, start: int) -> PhaseStep:
        canonical = " ".join(str(option) for option in split_options(options))
        try:
            return PhaseStep(name, canonical, parse_pipeline(expansion).steps)
        except PipelineError as error:  # an option value that a pass of the phase rejects
            raise self._error(f"{name}: {error.reason}", start) from error

    def _native(self, step: NativeStep, anchors: tuple[str, ...], start: int) -> NativeStep:
        if not is_native_pass(step.name):
            known = (*PASSES, *(PREFIX + phase for phase in PHASE_NAMES), *COMMON_NATIVE_PASSES)
            raise self._error(unknown_name("pass or phase", step.name, known), start)
        if reason := native_pipeline_error(anchored(step, anchors)):
            raise self._error(_option_fault(step.name, reason) or reason, start)
        return step

    def _peek(self) -> str:
        """The next character that is not blank, or "" at the end."""
        while self.pos < len(self.text) and self.text[self.pos].isspace():
            self.pos += 1
        return self.text[self.pos : self.pos + 1]

    def _error(self, reason: str, offset: int | None = None) -> PipelineError:
        return PipelineError(reason, self.text, self.pos if offset is None else offset)


def _option_fault(name: str, reason: str) -> str:
    """What C++ says of an option that a pass or pipeline of its lacks, or nothing."""
    match = _NO_OPTION.search(reason)
    if match is None:
        return ""
    known = [option.partition("=")[0] for option in native_options(name).split()]
    return unknown_name(f"option of {name}", match[1], known)


def anchored(step: Step, anchors: tuple[str, ...]) -> str:
    """A step inside its nestings, outermost first: `builtin.module(func.func(cse))`."""
    text = str(step)
    for anchor in reversed(anchors):
        text = f"{anchor}({text})"
    return text


def _quoted(char: str) -> str:
    return f"'{char}'" if char else "the end"
