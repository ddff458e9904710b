"""Phases of the compiler on a module, as the options of a method say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shardopt.frontend.calls.phase_options import phase_text

if TYPE_CHECKING:
    from jaxlib.mlir import ir

    from shardopt.options.plan_options import PlanOptions

TO_STAGE = ("import", "microbatch", "cluster", "stage")


def run_phases(module: ir.Module, chosen: PlanOptions, phases: Iterable[str]) -> None:
    """Raises UserError."""
    from shardopt.pipeline.manager import run_pipeline
    from shardopt.pipeline.phases import phase_range

    for phase in phases:
        run_pipeline(module, phase_range(phase, phase, phase_text(chosen, phase)))
