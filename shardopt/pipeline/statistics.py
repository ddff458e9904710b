"""The figures of every pass: what it recorded itself, and how many ops there were before and after
it.

C++ passes record nothing in the wheels of jaxlib (their statistics are compiled out); the number of
ops says what they did. Counting walks the module around every pass, and happens only when the
figures are asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from jaxlib.mlir import ir

from shardopt.pipeline.instrumentation import Instrumentation
from shardopt.pipeline.parser import Leaf, Pipeline
from shardopt.pipeline.timing import RULE

if TYPE_CHECKING:
    from shardopt.pipeline.manager import PipelineResult

Figures = dict[str, int | float]


@dataclass
class OpCounter(Instrumentation):
    """Counts the ops of the module before and after each pass."""

    counts: list[tuple[int, int]] = field(default_factory=list)
    _before: int = field(default=0, repr=False)

    def begin(self, pipeline: Pipeline, module: ir.Module) -> None:
        self.counts.clear()

    def before(self, leaf: Leaf, module: ir.Module) -> None:
        self._before = count_ops(module.operation)

    def after(self, leaf: Leaf, module: ir.Module) -> None:
        self.counts.append((self._before, count_ops(module.operation)))


def count_ops(op: ir.Operation) -> int:
    """The number of ops inside `op`, at all depths."""
    total = 0
    for region in op.regions:
        for block in region.blocks:
            for child in block.operations:
                total += 1 + count_ops(child.operation)
    return total


@dataclass(frozen=True)
class PassFigures:
    """The figures of one run of a pass, and the phases and nests that it stands in."""

    name: str
    groups: tuple[str, ...]
    figures: Figures


def pass_figures(result: PipelineResult, counter: OpCounter) -> tuple[PassFigures, ...]:
    """The figures of every pass of a run in its order."""
    rows = []
    for step, (before, after) in zip(result.steps, counter.counts, strict=True):
        figures = {"ops before": before, "ops after": after, **step.statistics}
        rows.append(PassFigures(str(step.leaf.step), step.leaf.groups, figures))
    return tuple(rows)


def summed(runs: Sequence[tuple[PassFigures, ...]]) -> tuple[PassFigures, ...]:
    """Several runs of one pipeline as one: figures of the same step add up."""
    return tuple(
        PassFigures(same[0].name, same[0].groups, _sum(run.figures for run in same))
        for same in zip(*runs, strict=True)
    )


def statistics_report(
    runs: Sequence[PassFigures], display: Literal["pipeline", "list"] = "pipeline"
) -> str:
    """The figures as text: along the pipeline, or as a list of passes by name in which those of
    equal passes add up."""
    lines = [RULE, "... Pass statistics report ...".center(len(RULE)).rstrip(), RULE]
    lines += _lines(_added(runs), 0) if display == "list" else _lines(runs, 0)
    return "\n".join(lines)


def statistics_json(
    runs: Sequence[PassFigures], display: Literal["pipeline", "list"] = "pipeline"
) -> str:
    """The figures as JSON: a list of `{"name": …, "within": […], "statistics": {…}}`."""
    rows = _added(runs) if display == "list" else runs
    entries = [
        {"name": run.name, "within": list(run.groups), "statistics": run.figures} for run in rows
    ]
    return json.dumps(entries, indent=1)


def _added(runs: Sequence[PassFigures]) -> list[PassFigures]:
    """One entry a pass, without its options, sorted by name; "ops removed" takes the place of the
    two counts."""
    totals: dict[str, Figures] = {}
    for run in runs:
        figures = dict(run.figures)
        figures = {"ops removed": figures.pop("ops before") - figures.pop("ops after"), **figures}
        name = run.name.partition("{")[0]
        totals[name] = _sum((totals.get(name, {}), figures))
    return [PassFigures(name, (), totals[name]) for name in sorted(totals)]


def _sum(many: Iterable[Figures]) -> Figures:
    total: Figures = {}
    for figures in many:
        for name, value in figures.items():
            total[name] = total.get(name, 0) + value
    return total


def _lines(runs: Iterable[PassFigures], depth: int) -> Iterable[str]:
    indent = "  " * depth
    for group, inside in groupby(runs, key=lambda run: run.groups[depth : depth + 1]):
        if group:
            yield f"{indent}{group[0]}"
            yield from _lines(inside, depth + 1)
            continue
        for run in inside:
            yield f"{indent}{run.name}"
            for name, value in run.figures.items():
                number = f"{value:.6g}" if isinstance(value, float) else str(value)
                yield f"{indent}  (S) {number:>10} {name}"
