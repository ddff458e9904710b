"""The IR is the only channel between passes: a phase run on the dump of the one before gives the
same bytes."""

from __future__ import annotations

import pytest

from shardopt.frontend.calls.phase_options import phase_text
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.pipeline.dumps import FILE_STYLE
from shardopt.pipeline.manager import run_pipeline
from shardopt.pipeline.phases import PHASE_NAMES, phase_range
from tests.e2e.models import MODELS
from tests.e2e.test_plan_and_run import plan_of


@pytest.mark.parametrize("phase", PHASE_NAMES[1:])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "scanned" else pytest.mark.slow) for name in MODELS],
)
def test_a_phase_alone_gives_the_bytes_of_the_pipeline(name: str, phase: str) -> None:
    plan = plan_of(name)
    dumps = dict(plan.phases)
    before = PHASE_NAMES[PHASE_NAMES.index(phase) - 1]
    with make_context() as context:
        module = load_module(dumps[before].encode(), context)
        run_pipeline(module, phase_range(phase, phase, phase_text(plan.options, phase)))
        assert FILE_STYLE.text(module.operation, verified=True) == dumps[phase]
