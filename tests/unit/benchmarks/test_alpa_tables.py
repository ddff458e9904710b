"""The tables of the Alpa experiments: published numbers, methods, one plan, and what a cell
says."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

import benchmarks.alpa
from benchmarks.alpa.methods import METHODS, options
from benchmarks.alpa.one import measured
from benchmarks.alpa.published import OUT_OF_MEMORY, published
from benchmarks.alpa.report import best, picture, tables, tflops
from benchmarks.alpa.specs import CASES, SHARDED_ALONE, TINY, Case, find_case

# Seconds of a step that the artifact's results_e2e.tsv has beside the TFLOPS of a GPU (intra-only).
_MEASURED = {
    "gpt-350m": 71.126,
    "gpt-1.3b": 49.88,
    "gpt-6.7b": 74.376,
    "wresnet-250m": 43.985,
    "wresnet-1b": 45.104,
    "wresnet-4b": 77.785,
    "wresnet-13b": 437.9,
}


def test_plans_of_equal_stages_are_never_ahead_of_the_planner() -> None:
    """In no cell of the page, each of which has a plan and its simulated step."""
    results = json.loads((Path(benchmarks.alpa.__file__).parent / "results.json").read_text())
    compared = 0
    for key, cell in results.items():
        name, method = key.split("/")[:2]
        planner = results[f"{name}/shardopt"].get("seconds")
        if method in ("equal-layer", "equal-op") and cell.get("seconds") is not None:
            assert planner is not None and planner <= cell["seconds"] * (1 + 1e-9), key
            compared += 1
    assert compared >= 10


@pytest.mark.parametrize("name", _MEASURED)
def test_flops_are_counted_as_in_the_paper(name: str) -> None:
    case = find_case(name)
    assert tflops(case, _MEASURED[name]) == pytest.approx(
        published(case.family, "intra-only", case.devices), rel=0.02
    )


def test_published_numbers_are_found_by_devices() -> None:
    assert published("gpt", "shardopt", 64) == 57.0
    assert published("moe", "deepspeed", 32) == 3.82
    assert published("wresnet", "pp-dp", 64) == OUT_OF_MEMORY
    assert published("wresnet", "equal-op", 16) == 3.3
    assert published("gpt", "deepspeed", 8) is None
    assert published("gpt", "equal-op", 4) is None


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_a_set_of_options_that_the_phases_take(method: str) -> None:
    from shardopt.frontend.calls.phase_options import phase_text
    from shardopt.pipeline.phases import PHASE_NAMES, phase_range

    for case in CASES:
        chosen = options(case, method)
        assert chosen.cluster == case.cluster
        assert case.spec.batch % chosen.microbatches == 0
        for phase in PHASE_NAMES:
            phase_range(phase, phase, phase_text(chosen, phase))


def test_a_plan_is_measured_up_to_the_stage_phase() -> None:
    spec = replace(TINY["gpt-tiny"], layers=1)  # type: ignore[type-var]
    case = Case("gpt-tiny", spec, 2, 2, 2)
    row = measured(case, options(case, "shardopt"), finish=False)
    assert float(str(row["seconds"])) > 0
    assert row["sharding problems solved"]
    assert list(row["planning"]) == ["import", "microbatch", "cluster", "stage"]  # type: ignore[call-overload]


def test_what_does_not_fit_is_said_and_kept_apart_from_what_was_not_run() -> None:
    case = find_case("gpt-350m")
    results = {
        "gpt-350m/shardopt": {"error": "no plan fits the memory of a device", "microbatches": 512},
        "gpt-350m/intra-only": {"seconds": 71.126, "microbatches": 64},
        "gpt-350m/intra-only/512": {"seconds": 80.0, "microbatches": 512},
        "gpt-1.3b/shardopt/512": {"error": "not planned within 5 s", "timeout": True},
        "gpt-2.6b/intra-only": {"seconds": 57.41, "microbatches": 128, "older": True},
    }
    fastest = best(case, "intra-only", results)
    assert fastest is not None
    assert fastest["seconds"] == 71.126
    head, _, *rows = tables(results).splitlines()
    assert head == "| model | GPUs | microbatches | shardopt | intra-only |"
    assert rows == [
        "| gpt-350m | 1 | 512 | does not fit (45.1) | 46.2 with 64 microbatches (46.2) |",
        "| gpt-1.3b | 4 | 128 | not planned in time (58.2) | not run (58.4) |",
        "| gpt-2.6b | 8 | 128 | not run (61.6) | 50.8* (50.8) |",
    ]
    # A legend of both methods, our bars, the lines of the paper, and crosses for what failed.
    drawn = picture(results)
    assert drawn.count("<rect") == 2 + 2 + 6
    assert drawn.count("fill-opacity") == 1, "what is older is pale"
    assert drawn.count(">×</text>") == 1, "a plan that was not found in time is none that fails"


def test_sharding_alone_has_the_microbatches_and_the_shape_of_the_authors() -> None:
    """And the plan in that shape is what a cell says, be another one faster."""
    for case in CASES:
        alone, chosen = SHARDED_ALONE[case.name], options(case, "intra-only")
        assert (chosen.microbatches, chosen.logical_shape) == (alone.microbatches, alone.shape)
        assert prod(map(int, alone.shape.split("x"))) == case.devices
        assert options(case, "shardopt").logical_shape is None
    results = {
        "moe-10b/intra-only": {"seconds": 16.1, "microbatches": 32, "logical_shape": "2x8"},
        "moe-10b/intra-only/16": {"seconds": 15.8, "microbatches": 16},
    }
    stated = best(find_case("moe-10b"), "intra-only", results)
    assert stated is not None and stated["seconds"] == 16.1


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.family == "gpt"], ids=lambda case: case.name
)
def test_the_grid_of_megatron_has_every_number_of_stages(case: Case) -> None:
    """That blocks and devices can be divided by: stages get equally many blocks."""
    layers = options(case, "megatron").layers
    assert isinstance(layers, int) and case.spec.layers % layers == 0
    for stages in range(1, case.devices + 1):
        if case.spec.layers % stages == 0 and case.devices % stages == 0:
            assert layers % stages == 0
