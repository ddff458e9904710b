"""Whether meshes compute as long as the plan predicts, beside each other.

A model of costs may be wrong by one factor for all devices; a mesh that falls behind the others has
a device that is slower than the plan was told, or that shares its time with somebody else, and all
others wait for it in every step."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardopt.frontend.plans.plan import Plan
    from shardopt.runtime.program.instructions import Program

# The fastest of so many steps counts: what disturbs single ones says nothing of the devices.
_STEPS = 16
# Predictions of single stages differ from each other by less than that (docs/evidence).
_SLOWER = 1.5


class Pace:
    """`predicted` are the seconds of a step in which each mesh computes tasks of its schedule."""

    def __init__(self, predicted: Mapping[str, float]) -> None:
        self._predicted = {mesh: seconds for mesh, seconds in predicted.items() if seconds > 0}
        self._measured = {mesh: deque[float](maxlen=_STEPS) for mesh in self._predicted}
        self._told: set[str] = set()

    def add(self, step: int, measured: Mapping[str, float]) -> None:
        """Look at the seconds of one more step, and print a warning for a mesh that is slower than
        the others, once until it is no longer."""
        for mesh, newest in self._measured.items():
            newest.append(measured.get(mesh, 0.0))
        if any(len(newest) < _STEPS or not min(newest) for newest in self._measured.values()):
            return
        least = {mesh: min(newest) for mesh, newest in self._measured.items()}
        ratios = {mesh: least[mesh] / seconds for mesh, seconds in self._predicted.items()}
        for mesh, ratio in ratios.items():
            others = [other for name, other in ratios.items() if name != mesh]
            if not others or ratio <= _SLOWER * median(others):
                self._told.discard(mesh)
            elif mesh not in self._told:
                self._told.add(mesh)
                print(
                    f"warning: step {step}: mesh '{mesh}' computes {ratio / median(others):.2g} "
                    f"times as long as predicted, beside the other meshes: {least[mesh]:.3g} s a "
                    f"step, predicted {self._predicted[mesh]:.3g} s",
                    file=sys.stderr,
                )


def predicted_seconds(plan: Plan, program: Program) -> dict[str, float]:
    """By mesh, the tasks of all microbatches of a step. Raises UserError."""
    seconds = {part.mesh.name: 0.0 for part in program.meshes}
    names = [*seconds]
    for span in plan.simulate().spans():
        if not span.task.kind.runs_once:
            seconds[names[span.mesh]] += span.end_seconds - span.start_seconds
    return seconds
