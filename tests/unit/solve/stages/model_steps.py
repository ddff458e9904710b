"""Tiny models of the benchmarks as step graphs."""

from __future__ import annotations

from functools import lru_cache

from benchmarks.alpa.specs import TINY
from shardopt.dialect.program import read_program
from shardopt.frontend.calls.phase_options import phase_text
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.models.build import bytecode
from shardopt.options.plan_options import PlanOptions
from shardopt.passes.stages.read_step import read_step
from shardopt.pipeline.manager import run_pipeline
from shardopt.pipeline.phases import phase_range
from shardopt.solve.presets.base import InputKinds
from shardopt.solve.stages.step_graph import StepGraph


@lru_cache(maxsize=16)
def step_of(name: str, layers: int, microbatches: int) -> tuple[StepGraph, InputKinds]:
    options = PlanOptions(
        "cpu-test:1x4",
        layers=layers,
        microbatches=microbatches,
        batch_coupling="per-microbatch",
    )
    with make_context() as context:
        module = load_module(bytecode(TINY[name]), context)
        for phase in ("import", "microbatch", "cluster"):
            run_pipeline(module, phase_range(phase, phase, phase_text(options, phase)))
        return read_step(read_program(module))
