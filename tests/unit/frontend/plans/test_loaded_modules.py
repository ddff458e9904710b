"""Each module of a plan is parsed once, whoever reads it, and stays as it is."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan, PlanOptions
from shardopt.ir import io
from shardopt.ir.diagnostics import DiagnosedError
from shardopt.ir.io import module_bytecode
from shardopt.support.errors import UserError

MODEL = Path(__file__).parents[4] / "docs" / "tutorial" / "mlp.mlir"
DAMAGED = Path(__file__).parents[3] / "lit" / "tools" / "Inputs" / "aborting.mlirbc"
OPTIONS = PlanOptions("cpu-test:1x4", microbatches=4)

Parses = list[bytes]


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> Parses:
    """What the parsers were given, in order."""
    given: Parses = []
    parse = io._parse

    def counted(data: bytes, *others: Any) -> Any:
        given.append(data)
        return parse(data, *others)

    monkeypatch.setattr(io, "_parse", counted)
    return given


@pytest.mark.parametrize("microbatches", [4, None], ids=["chosen", "searched"])
def test_planning_parses_the_model_and_nothing_else(
    parses: Parses, microbatches: int | None
) -> None:
    plan = make_plan(
        MODEL, PlanOptions("cpu-test:1x4", microbatches=microbatches, layers="search"), cache=False
    )
    assert plan.phases[0][0] == "import" and parses[0] == MODEL.read_bytes()
    assert set(parses[1:]) <= {form for _, form in plan.forms}  # for the text of the phases


READERS: list[Callable[[Plan], object]] = [
    repr,
    Plan._repr_html_,
    Plan.simulate,
    Plan.timeline,
    Plan.program,
]


def test_what_a_plan_shows_is_read_without_a_parser(parses: Parses) -> None:
    plan = make_plan(MODEL, OPTIONS, cache=False)
    for read in READERS:
        read(plan)
    assert parses == [MODEL.read_bytes()]


def test_a_saved_and_a_read_plan_parse_each_module_once(parses: Parses, tmp_path: Path) -> None:
    plan = make_plan(MODEL, OPTIONS, cache=False)
    for folder in ("once", "twice"):
        plan.save(tmp_path / folder)
    assert len(parses) == len(set(parses)) and plan.module not in parses
    parses.clear()
    loaded = Plan.load(tmp_path / "once")
    for read in (*READERS, Plan.report, Plan.to_json, Plan.save):
        read(loaded, tmp_path / "thrice") if read is Plan.save else read(loaded)
    assert len(parses) == len(set(parses))
    assert {loaded.module, loaded.original} <= set(parses)


def test_a_plan_from_a_plan_file_parses_the_model_once(parses: Parses, tmp_path: Path) -> None:
    file = make_plan(MODEL, OPTIONS, cache=False).save(tmp_path / "plan") / "plan.json"
    parses.clear()
    make_plan(MODEL, PlanOptions("", microbatches=4, plan=str(file)), cache=False)
    assert parses == [MODEL.read_bytes()]


def test_a_changed_plan_is_read_by_another_process_first(tmp_path: Path) -> None:
    """Without the checksum nobody says that the file is whole, and C++ ends the process on this."""
    plan = make_plan(MODEL, OPTIONS, cache=False)
    folder = plan.save(tmp_path / "plan")
    (folder / "files.sha256").unlink()
    assert Plan.load(folder).module == plan.module
    (folder / "module.mlirbc").write_bytes(DAMAGED.read_bytes())
    with pytest.raises(UserError, match=r"module\.mlirbc: not a readable module"):
        Plan.load(folder)
    for text, fault in ((b"", "@main"), (MODEL.read_bytes(), "topology")):
        (folder / "module.mlirbc").write_bytes(text)
        with pytest.raises(DiagnosedError, match=fault):
            Plan.load(folder)


def test_what_a_module_says_wrongly_is_an_error(tmp_path: Path) -> None:
    folder = make_plan(MODEL, OPTIONS, cache=False).save(tmp_path / "plan")
    (folder / "files.sha256").unlink()
    data = (folder / "module.mlirbc").read_bytes()
    for old, new, message in (
        (b"peak_flops", b"peak_flaps", "error: .*unknown field 'device.peak_flaps'"),
        (b"\0cpu-test\0", b"\0cpu-\xffest\0", r"module\.mlirbc: a string that should be text"),
    ):
        assert old in data
        (folder / "module.mlirbc").write_bytes(data.replace(old, new))
        with pytest.raises(UserError, match=message):
            Plan.load(folder)


def test_readers_leave_the_modules_as_they_are(tmp_path: Path) -> None:
    plan = make_plan(MODEL, OPTIONS, cache=False)
    plan.save(tmp_path / "plan")
    for read in (*READERS, Plan.report):
        read(plan)
    with plan.loaded as modules:
        for data in (plan.module, plan.original, *(form for _, form in plan.forms)):
            assert module_bytecode(modules[data]) == data


def test_one_thread_reads_at_a_time() -> None:
    plan = make_plan(MODEL, OPTIONS, cache=False)
    results = []
    thread = threading.Thread(target=lambda: results.append(plan.simulate()))
    with plan.loaded:
        thread.start()
        thread.join(0.2)
        assert not results
        plan.simulate()  # whoever reads already may go on
    thread.join(60)
    assert results == [plan.simulate()]


def test_a_copied_plan_reads_its_modules_again(parses: Parses) -> None:
    plan = make_plan(MODEL, OPTIONS, cache=False)
    assert copy.deepcopy(plan) == plan
    parses.clear()
    assert copy.deepcopy(plan).simulate() == plan.simulate()
    assert parses == [plan.module]
