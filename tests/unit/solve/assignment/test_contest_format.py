"""Reading and writing the contest's JSON."""

from __future__ import annotations

import gzip
import json
from copy import deepcopy
from math import inf
from pathlib import Path
from typing import Any

import pytest

from shardopt.solve.assignment.contest import format_solution, parse_contest, read_contest
from shardopt.solve.assignment.problem import evaluate
from shardopt.solve.assignment.search.sharding_ilp import solve
from shardopt.support.errors import UserError

# Node 1 would like strategy 0, which node 0 forbids beside its own cheap one; at time 3 nodes 1 and
# 2 must share 10.
INSTANCE: dict[str, Any] = {
    "problem": {
        "name": "three",
        "nodes": {
            "intervals": [[0, 2], [1, 4], [3, 3], [3, 6]],
            "costs": [[1, 20], [2, 3], [7], [0, 6]],
            "usages": [[4, 4], [5, 6], [99], [8, 2]],
        },
        "edges": {
            "nodes": [[0, 1], [3, 1]],
            "costs": [[10**18, 0, 0, 0], [0, 0, 0, 1]],
        },
        "usage_limit": 10,
    }
}


def with_field(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    document = deepcopy(INSTANCE)
    target = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return document


def test_fields_arrive() -> None:
    problem = parse_contest(INSTANCE)
    assert [cost.tolist() for cost in problem.costs] == [[1.0, 20.0], [2.0, 3.0], [7.0], [0.0, 6.0]]
    assert [(edge.u, edge.v) for edge in problem.edges] == [(0, 1), (3, 1)]
    assert problem.edges[0].cost.tolist() == [[inf, 0.0], [0.0, 0.0]]
    assert problem.usages is not None
    # The empty interval never counts.
    assert [len(segments) for segments in problem.usages] == [
        1,
        1,
        0,
        1,
    ]
    assert (problem.memory_limit, problem.num_times) == (10, 6)


@pytest.mark.parametrize("name", ["three.json", "three.json.gz"])
def test_read_solve_and_format(tmp_path: Path, name: str) -> None:
    data = json.dumps(INSTANCE).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    problem = read_contest(tmp_path / name)
    solution = solve(problem)
    assert format_solution(solution.choice) == "[0, 1, 0, 1]"
    assert evaluate(problem, solution.choice) == (1 + 3 + 7 + 6 + 1, 10, True)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "the document: expected an object with the field 'problem'"),
        (with_field(("problem", "nodes", "costs"), 3), r"problem.nodes.costs: expected a list"),
        (with_field(("problem", "nodes", "usages"), []), "differ in length"),
        (with_field(("problem", "edges", "costs"), [[0]]), "expected 2 costs, found 1"),
        (with_field(("problem", "edges", "nodes", 0), [0, 9]), r"edge \[0, 9\]: there are 4 nodes"),
        (with_field(("problem", "edges", "costs", 0), [1, 2, 3]), "expected 2 x 2 costs, found 3"),
        (
            with_field(("problem", "nodes", "usages", 0), [-1, 0]),
            "node 0: bytes must not be negative",
        ),
        (with_field(("problem", "nodes", "intervals", 0), ["a", 1]), "problem: invalid literal"),
    ],
)
def test_wrong_documents_are_refused(document: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_contest(document)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text("{")
    with pytest.raises(UserError, match=r"broken\.json: "):
        read_contest(path)
    with pytest.raises(UserError, match=r"absent\.json"):
        read_contest(tmp_path / "absent.json")
