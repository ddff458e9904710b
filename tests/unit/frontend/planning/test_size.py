"""How much of a cluster a model needs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shardopt
from shardopt.frontend.planning.size import Sizes, sizes_of
from shardopt.hardware.cluster_file import load_cluster
from shardopt.options.names import Objective
from shardopt.support.errors import UserError
from tests.unit.hardware.test_parts import FILE

MODEL = Path(__file__).with_name("two_products.mlir")
# Of one device, as a plan would predict it; three fit nowhere below.
_STEPS = {1: None, 2: 8.0, 4: 4.5, 8: 3.0, 16: 2.0, 24: 2.5}


@pytest.fixture
def pool(tmp_path: Path) -> str:
    file = tmp_path / "pool.yaml"
    file.write_text(FILE)
    return str(file)


def sizes(cluster: str, objective: Objective, limit: float | None = None) -> Sizes:
    def plan_for(spec: str, microbatches: int | None) -> Any:
        assert microbatches is None
        seconds = _STEPS[load_cluster(spec).num_devices]
        if seconds is None:
            raise UserError("does not fit")
        rows = [SimpleNamespace(peak_bytes=7), SimpleNamespace(peak_bytes=9)]
        return SimpleNamespace(summary=SimpleNamespace(step_seconds=seconds, stages=rows))

    return sizes_of(cluster, plan_for, objective, limit)


@pytest.mark.parametrize(
    ("objective", "limit", "devices", "tried"),
    [
        ("devices", None, 2, 2),
        ("devices", 3.0, 8, 4),
        ("step", None, 16, 6),
        ("cost", None, 4, 6),  # one host for 4.5 s; two of them cost more for 3
        ("cost", 3.5, 8, 6),
        ("cost", 2.5, 16, 6),
    ],
)
def test_the_best_part(
    pool: str, objective: Objective, limit: float | None, devices: int, tried: int
) -> None:
    found = sizes(pool, objective, limit)
    assert found.best is not None and found.best.devices == devices
    assert len(found.tried) == tried
    assert found.tried[0].reason == "does not fit" and found.tried[0].step_seconds is None


def test_prices_are_those_of_whole_hosts(pool: str) -> None:
    found = sizes(pool, "cost")
    prices = {each.devices: each.price_per_step for each in found.tried}
    assert prices[1] is None
    assert prices[2] == pytest.approx(8.0 * 12.5 / 3600)
    assert prices[24] == pytest.approx(2.5 * 6 * 12.5 / 3600)
    assert [row["best"] for row in found.to_json()] == [False, False, True, False, False, False]
    assert found.tried[1].peak_bytes == 9


def test_a_table_marks_it(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    Console(width=160).print(sizes(pool, "step").table())
    lines = [
        [cell.strip() for cell in line.strip("│ \n").split("│")]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("│")
    ]
    assert [line[0] for line in lines].count("→") == 1
    assert lines[4][0] == "→" and lines[4][2:5] == ["16", "2 s", "50%"]
    assert lines[0][-1] == "does not fit"


def test_what_cannot_be_chosen(pool: str) -> None:
    assert sizes(pool, "devices", 1.0).best is None
    with pytest.raises(UserError, match="'price_per_hour'"):
        sizes("cpu-test:1x2", "cost")
    with pytest.raises(UserError, match="unknown objective: 'time'"):
        sizes(pool, "time")  # type: ignore[arg-type]
    for limit in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match="seconds of a step above 0"):
            sizes(pool, "step", limit)
    with pytest.raises(UserError, match="does not fit"):
        sizes("cpu-test:1x1", "devices")


def test_models_are_planned_for_each_part() -> None:
    told = []
    found = shardopt.size(
        MODEL,
        "cpu-test:1x4",
        objective="step",
        cache=False,
        on_part=lambda *part: told.append(part),
    )
    assert told == [(f"cpu-test:1x{n}", k, 3) for k, n in ((1, 1), (2, 2), (3, 4))]
    alone = shardopt.optimize(MODEL, "cpu-test:1x2", cache=False)
    assert found.tried[1].step_seconds == alone.summary.step_seconds
    assert found.best is min(found.tried, key=lambda each: each.step_seconds or 0)


def test_most_of_the_batch_at_a_time() -> None:
    """Of eight rows, 4 do not fit; with a limit of seconds nothing else is taken either."""
    needs: dict[int, float | None] = {1: None, 2: None, 4: 5.0, 8: 7.0}

    def plan_for(spec: str, microbatches: int | None) -> Any:
        assert spec == "cpu-test:2x4" and microbatches is not None
        if needs[microbatches] is None:
            raise UserError("does not fit")
        rows = [SimpleNamespace(peak_bytes=microbatches)]
        return SimpleNamespace(
            summary=SimpleNamespace(step_seconds=needs[microbatches], stages=rows)
        )

    def found(limit: float | None) -> Sizes:
        return sizes_of("cpu-test:2x4", plan_for, "batch", limit, batch_rows=lambda: 8)

    best = found(None).best
    assert best is not None and best.rows == 2 and best.devices == 8
    assert [each.rows for each in found(None).tried] == [8, 4, 2]
    assert found(4.0).best is None and len(found(4.0).tried) == 4


def test_a_model_is_planned_with_as_few_microbatches_as_fit() -> None:
    model = Path(__file__).parents[4] / "docs/tutorial/mlp.mlir"
    found = shardopt.size(
        model,
        "cpu-test:1x1",
        objective="batch",
        cache=False,
        memory_budget="9.4MiB",
        recompute="none",
    )
    assert [each.rows for each in found.tried] == [512, 256]
    assert "memory of a device" in found.tried[0].reason
    assert found.best is found.tried[1] and found.best.plan is not None
    assert found.best.plan.summary.num_microbatches == 2
    assert (found.best.peak_bytes or 0) <= 9.4 * 2**20
