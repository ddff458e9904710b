"""Where the time of `shardopt plan` went, as the report of `shardopt-opt --mlir-timing`."""

from __future__ import annotations

from shardopt.pipeline.manager import PipelineResult
from shardopt.pipeline.timing import Timed, merged, timing_report, timing_tree
from shardopt.support.spans import Seconds, clocks


class PlanTimings:
    """The time of all phases; what is neither a phase nor the output is reading the model,
    looking it up, and phases that ended in a refusal."""

    def __init__(self) -> None:
        self._begun = clocks()
        self._planned = self._begun
        self._phases: list[tuple[Timed, ...]] = []

    def add(self, result: PipelineResult) -> None:
        """A phase ends."""
        self._phases.append(timing_tree(result))

    def planned(self) -> None:
        """The plan is there; what follows is output."""
        self._planned = clocks()

    def report(self) -> str:
        rows = merged(self._phases)
        elsewhere = self._planned - self._begun - sum((row.time for row in rows), Seconds())
        output = Timed("Output", clocks() - self._planned)
        return timing_report((Timed("Model, cache and refused choices", elsewhere), *rows, output))
