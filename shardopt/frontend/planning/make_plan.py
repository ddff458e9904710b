"""From a model to a plan: run all phases and keep the IR after each, or find the plan in the
cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardopt.caching.store import default_store, using
from shardopt.frontend.calls.phase_options import phase_text
from shardopt.frontend.calls.sources import reported_in, resolve_source, source_name
from shardopt.frontend.planning.step_search import (
    Attempt,
    Choice,
    RunPhase,
    balance_choices,
    batch_extent,
    best_by_schedule,
    best_choice,
    comparison,
    grow_layers,
    microbatch_choices,
)
from shardopt.frontend.plans.from_plan_file import check_model
from shardopt.frontend.plans.loaded_modules import LoadedModules
from shardopt.frontend.plans.plan import Plan
from shardopt.frontend.plans.plan_cache import get_plan, plan_key, put_plan
from shardopt.hardware.cluster_file import load_cluster
from shardopt.hardware.memory_limit import check_budget
from shardopt.options.plan_options import PlanOptions
from shardopt.passes.kernels import compile_for
from shardopt.schedule.schedules import ALIKE, SEARCH
from shardopt.support.collection import rare_collection

if TYPE_CHECKING:
    from jaxlib.mlir import ir

    from shardopt.ir.diagnostics import Diagnostic, Handler
    from shardopt.pipeline.manager import PipelineResult


def make_plan(
    source: Any,
    options: PlanOptions,
    *,
    cache: bool = True,
    on_phase: Callable[[str], None] | None = None,
    on_result: Callable[[PipelineResult], None] | None = None,
    handler: Handler | None = None,
) -> Plan:
    """Plan a model: a path, bytes (MLIR text, bytecode or portable artifact), a
    `jax.export.Exported`, a module.

    `cache=False` neither looks for plans and stage costs of earlier runs nor keeps any.
    `on_phase(name)` is told when a phase begins, `on_result` what it did; neither is when the plan
    was found in the cache. `handler` gets warnings and remarks. Raises UserError."""
    name = source_name(source)
    source = resolve_source(source)
    with reported_in(name, handler) as report:
        store = default_store(lambda message: report(_remark("cache", message))) if cache else None
        key = None if store is None or options.plan else plan_key(source, name, options)
        if (
            store is not None
            and key is not None
            and (cached := get_plan(store, key, options)) is not None
        ):
            plan, diagnostics = cached
            for diagnostic in diagnostics:
                report(diagnostic)
            report(
                _remark(
                    "cached-plan",
                    f"the plan was found in '{store.folder}', where an earlier run has left it",
                )
            )
            return plan
        diagnostics = []

        def keep(diagnostic: Diagnostic) -> None:
            diagnostics.append(diagnostic)
            report(diagnostic)

        with using(store), rare_collection():
            plan = _run_phases(source, name, options, on_phase, on_result, keep)
        if store is not None and key is not None:
            put_plan(store, key, plan, diagnostics)
        return plan


def batch_rows(source: Any, options: PlanOptions, handler: Handler | None = None) -> int:
    """The rows of the batch of a model, which all numbers of microbatches divide; 1 where no batch
    is known. `source` as in `make_plan`. Raises UserError."""
    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module
    from shardopt.pipeline.manager import run_pipeline
    from shardopt.pipeline.phases import phase_range

    def run(
        module: ir.Module, phase: str, chosen: PlanOptions, report: Handler, more: str = ""
    ) -> None:
        text = phase_text(chosen, phase) + more
        run_pipeline(module, phase_range(phase, phase, text), handler=report)

    name = source_name(source)
    # What the phases have to say is said where the model is planned.
    with reported_in(name, handler), make_context() as context:
        module = load_module(resolve_source(source), context, name=name)
        run(module, "import", options, lambda _: None)
        return batch_extent(module, options, run)


def _run_phases(
    source: bytes | str | os.PathLike[str],
    name: str,
    options: PlanOptions,
    on_phase: Callable[[str], None] | None,
    on_result: Callable[[PipelineResult], None] | None,
    handler: Handler,
) -> Plan:
    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module, module_bytecode
    from shardopt.ir.rewriting import copy_of
    from shardopt.pipeline.manager import check_options, run_pipeline
    from shardopt.pipeline.phases import PHASE_NAMES, phase_range
    from shardopt.report.plan_summary import summarize

    def run(
        module: ir.Module, phase: str, chosen: PlanOptions, report: Handler, more: str = ""
    ) -> None:
        if on_phase is not None:
            on_phase(phase)
        text = phase_text(chosen, phase) + more
        result = run_pipeline(module, phase_range(phase, phase, text), handler=report)
        if on_result is not None:
            on_result(result)

    if options.cluster and options.memory_budget:
        check_budget(load_cluster(options.cluster), options.memory_budget)
    for phase in PHASE_NAMES:
        check_options(phase_range(phase, phase, phase_text(options, phase)))
    with make_context() as context, LoadedModules(context) as loaded:
        module = load_module(source, context, name=name)
        original = module_bytecode(module)
        compile_for(original)
        # The phases change `module` itself, and a plan says what it was made for.
        loaded.keep(original, copy_of(module))
        if options.plan:
            check_model(options.plan, module)
        forms: list[tuple[str, bytes]] = []
        chosen = options
        for phase in PHASE_NAMES:
            if phase in dict(forms):
                continue
            run(module, phase, chosen, handler)
            forms.append((phase, module_bytecode(module)))
            if phase == "import" and (best := _search(module, options, run, handler)) is not None:
                for diagnostic in best.diagnostics:
                    handler(diagnostic)
                assert best.module is not None, "that of the best is kept"
                module, chosen = best.module, best.choice.options
                forms += best.forms
        loaded.keep(forms[-1][1], module)
        return Plan(forms[-1][1], original, tuple(forms), summarize(module), options, loaded=loaded)


def _search(
    module: ir.Module, options: PlanOptions, run: RunPhase, handler: Handler
) -> Attempt | None:
    """Of the imported form, planned up to its stages, what was asked to be searched; None if
    nothing was."""
    best = None
    choices: tuple[Choice, ...] = (Choice("", options),)
    if options.microbatches is None:
        choices = microbatch_choices(module, options, run)
    balances = options.layer_balance == SEARCH
    if balances:
        choices = tuple(each for choice in choices for each in balance_choices(choice))
    if options.schedule == SEARCH:
        best, attempts = best_choice(module, choices, run, ALIKE)
        handler(_remark("schedules", comparison(best, best_by_schedule(attempts))))
        options = best.choice.options
    elif options.microbatches is None or balances:
        best, attempts = best_choice(module, choices, run)
        tried, cut = comparison(best, attempts), options.microbatches is None
        handler(_remark("microbatches", tried) if cut else _remark("layers", tried))
        options = best.choice.options
    if options.layers == "search":
        best, attempts = grow_layers(module, options, run)
        handler(_remark("layers", comparison(best, attempts)))
    return best


def _remark(kind: str, message: str) -> Diagnostic:
    from shardopt.ir.diagnostics import Diagnostic

    return Diagnostic("remark", message, kind=kind, category="analysis")
