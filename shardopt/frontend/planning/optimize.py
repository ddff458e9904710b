"""`shardopt.optimize`: from a model to a plan in one call."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from shardopt.frontend.calls.arguments import options_of
from shardopt.frontend.calls.python_words import errors_for_python, python_handler
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan
from shardopt.options.keywords import PlanKeywords
from shardopt.options.signatures import shows_options

if TYPE_CHECKING:
    from shardopt.ir.diagnostics import Handler


@shows_options("optimize")
def optimize(
    model: Any,
    cluster: str | os.PathLike[str],
    *,
    cache: bool = True,
    on_phase: Callable[[str], None] | None = None,
    handler: Handler | None = None,
    **options: Unpack[PlanKeywords],
) -> Plan:
    """Plan a model for a cluster: stages, a sharding for every tensor, transfers and a schedule.

    `model` is a `jax.export.Exported`, an MLIR module of StableHLO, its text, bytecode or portable
    artifact as bytes, or the path of a file with one. `cluster` is a cluster file or a preset
    (`"cpu-test:1x4"`). The `options` are those of docs/reference/options.md; what is left `None` is
    the planner's choice. `batch_args` may also be numbers of flat arguments or names, or a
    dictionary from such to batch dimensions.

    `cache=False` neither looks for the plan, or the costs of its stages, where an earlier run has
    left them, nor keeps any (docs/concepts/planning-time.md). `on_phase(name)` is told when a phase
    begins; `handler` gets warnings and remarks. Raises UserError."""
    chosen = options_of("optimize", cluster, options, model)
    with errors_for_python():
        plan = make_plan(
            model, chosen, cache=cache, on_phase=on_phase, handler=python_handler(handler)
        )
    return replace(plan, source=model)
