"""Fewer passes, with fewer options."""

from __future__ import annotations

from jaxlib.mlir import ir

from shardopt.passes.options import split_options
from shardopt.pipeline.manager import run_pipeline
from shardopt.reduce.candidate import Subject, pipeline_text


class DropLocations:
    """Prints the module without: a plain text is what people read."""

    name = "locations"

    def places(self, subject: Subject) -> int:
        return int(subject.keeps_locations)

    def apply(self, subject: Subject, chosen: range) -> None:
        subject.keeps_locations = False


class DropPasses:
    """Leaves passes out."""

    name = "passes"

    def places(self, subject: Subject) -> int:
        return len(subject.passes or ())

    def apply(self, subject: Subject, chosen: range) -> None:
        left = [each for k, each in enumerate(subject.passes or ()) if k not in chosen]
        subject.passes = tuple(left)


class RunPasses:
    """Runs the first passes for good: what they make takes the place of the module.

    Behind `DropPasses`, because a module that was not rewritten is nearer to what somebody
    wrote."""

    name = "passes run"

    def places(self, subject: Subject) -> int:
        return max(0, len(subject.passes or ()) - 1)

    def apply(self, subject: Subject, chosen: range) -> None:
        if chosen.start:
            raise ValueError("a pass runs behind those before it")
        passes = subject.passes or ()
        run_pipeline(subject.module, pipeline_text(passes[: chosen.stop]), verify_each=False)
        subject.passes = passes[chosen.stop :]


class DropPassOptions:
    """Takes options back to their defaults. As long as the others shrink the pipeline, there is
    one option fewer at a time, counted in characters."""

    name = "options of passes"

    def places(self, subject: Subject) -> int:
        return sum(len(_options(each)) for each in subject.passes or ())

    def apply(self, subject: Subject, chosen: range) -> None:
        left, first = [], 0
        for each in subject.passes or ():
            options = _options(each)
            kept = [text for k, text in enumerate(options, start=first) if k not in chosen]
            first += len(options)
            left.append(each if len(kept) == len(options) else _with_options(each, kept))
        subject.passes = tuple(left)


class Tidy:
    """Lets passes of MLIR clean up: each is one place."""

    name = "canonicalization"
    _PASSES = ("symbol-dce", "func.func(cse)", "func.func(canonicalize)")

    def places(self, subject: Subject) -> int:
        return len(self._PASSES)

    def apply(self, subject: Subject, chosen: range) -> None:
        with ir.Location.unknown():
            for k in chosen:
                run_pipeline(subject.module, pipeline_text(self._PASSES[k : k + 1]))


def _options(text: str) -> list[str]:
    """Those of one pass; what is nested keeps its own."""
    name, brace, options = text.partition("{")
    if not brace or "(" in name:
        return []
    return [str(option) for option in split_options(options.removesuffix("}"))]


def _with_options(text: str, options: list[str]) -> str:
    name = text.partition("{")[0]
    return f"{name}{{{' '.join(options)}}}" if options else name
