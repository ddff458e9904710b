"""Presets on graphs made by hand: what they take from Shardy, how tied values agree, and the table
of the benchmark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.solve.intra_op import beaten, markdown, read_records
from benchmarks.solve.intra_op_plans import Record
from shardopt.graph.op_graph import Op, OpGraph
from shardopt.mesh.mesh import Sharding
from shardopt.solve.presets.flow import follow_batch
from shardopt.solve.presets.presets import InputKinds, restrict
from shardopt.solve.presets.propagated import nearest
from shardopt.solve.presets.weights import WeightUses
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.strategies.strategies import all_shardings
from tests.unit.solve.sharding.op_graphs import CLUSTER, MESH, elementwise, f32, rule

ROWS, COLUMNS = Sharding((("x",), ())), Sharding(((), ("x",)))


@pytest.mark.parametrize(
    ("target", "shape", "expected"),
    [
        (((("x",), ("y",))), (4, 4), '[{"x"}, {"y"}]'),
        (((("y", "x"), ())), (4, 4), '[{"y"}, {}]'),  # the order of axes is that of the mesh
        (((("x", "y"), ())), (2, 4), '[{"x"}, {}]'),  # four tiles of two elements do not exist
        (((("x",), ("y",))), (1, 4), '[{}, {"y"}]'),
        (((("x",), ("y",))), (1, 1), "[{}, {}]"),
    ],
)
def test_the_nearest_sharding_keeps_most_tiles(
    target: tuple[tuple[str, ...], ...], shape: tuple[int, ...], expected: str
) -> None:
    assert str(nearest(MESH, Sharding(target), all_shardings(MESH, shape))) == expected


def test_what_shardy_propagates_is_fixed_and_the_rest_is_free() -> None:
    graph = OpGraph((f32(8, 8),) * 3, (elementwise("add", (8, 8), (0, 1), 2),), (0, 1), (2,))
    tables = IntraOpTables(graph, MESH, CLUSTER)
    restriction = restrict("shardy", tables, InputKinds(propagated={0: ROWS, 2: COLUMNS}))
    assert restriction.fixed == {0: ROWS, 2: COLUMNS}
    assert not restriction.allowed  # no strategy of an addition takes rows and makes columns


def test_a_weight_that_many_ways_lead_to_is_found_once() -> None:
    """As many as two to the number of rounds lead to a key that numbers are drawn from."""
    rounds = 60
    ops = [elementwise("add", (8, 8), (0, 1), 3)]
    ops += [elementwise("add", (8, 8), (k, k), k + 1) for k in range(3, 3 + rounds)]
    last = 3 + rounds
    ops.append(elementwise("multiply", (8, 8), (last, 2), last + 1))
    graph = OpGraph((f32(8, 8),) * (last + 2), tuple(ops), (0, 1, 2), (last + 1,))
    flow = follow_batch(graph, InputKinds(batch={2: 0}, state=frozenset({0, 1})), "test")
    uses = WeightUses.of(graph, flow)
    assert list(uses.origins(last, 1)) == [(0, 1), (1, 1)]


def test_tied_results_are_left_to_the_solver_where_a_preset_would_have_them_differ() -> None:
    """A buffer that starts whole and is written in parts: the start gives way."""
    start = Op("constant", (), (1,), rule("->ab", {"a": 8, "b": 8}))
    graph = OpGraph((f32(8, 8),) * 3, (start, elementwise("negate", (8, 8), (0,), 2)), (0,), (1, 2))
    input_kinds = InputKinds(batch={0: 0}, tied=((1, 2),))
    tables = IntraOpTables(graph, MESH, CLUSTER)
    allowed = restrict("data", tables, input_kinds).allowed
    made = {str(tables.ops[1].strategies[number].results[0]) for number in allowed[1]}
    assert made == {'[{"x", "y"}, {}]'}
    assert 0 not in allowed


def record(preset: str, seconds: float, status: str = "optimal") -> Record:
    return Record(
        "gpt",
        "2x4",
        preset,
        "a100-80g",
        1.0,
        status,
        seconds,
        gap=0.0,
        planned_bytes=2048,
        solve_seconds=1.5,
    )


def test_the_table_compares_with_the_solver_on_the_same_mesh() -> None:
    data = replace(record("data", 3.0), compiled_bytes=4096)
    records = [
        record("ilp", 2.0),
        data,
        record("zero1", float("inf"), "refused"),
        record("mics", 1.0),
    ]
    assert markdown(records, ("ilp", "data", "zero1", "mics")).splitlines() == [
        "### 2x4",
        "",
        "| model | ilp | gap | solve | data | zero1 | mics |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| gpt | 2 s | optimal | 1.5 s | 1.500 | – | 0.500 |",
        "",
        "Exchanged on 2x4, KiB:",
        "",
        "| model | ilp | data | zero1 | mics |",
        "| --- | --- | --- | --- | --- |",
        "| gpt | 2 / ? | 2 / 4 | – | 2 / ? |",
    ]
    assert [(worse.preset, best.preset) for worse, best in beaten(records)] == [("mics", "ilp")]


def test_the_last_result_of_a_key_counts(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    before = replace(record("data", 3.0), note="compiling ended the process")
    lines = [json.dumps(item.as_dict()) for item in (before, record("data", 3.0))]
    path.write_text("\n".join([*lines, lines[0][:20]]))  # the process ended within a line
    assert list(read_records(path).values()) == [record("data", 3.0)]
    assert read_records(tmp_path / "none.jsonl") == {}
