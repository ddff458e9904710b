"""The JSON format of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism
(github.com/google/iopddl).

`problem.nodes` holds, for each node, an interval `[lo, hi)`, costs and usages by strategy;
`problem.edges` holds node pairs and their cost tables in row-major order; `problem.usage_limit`
bounds the usage at every time."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardopt.solve.assignment.problem import Edge, Problem, Usage
from shardopt.support.errors import UserError

# The format's sentinel for a forbidden strategy or pair.
_FORBIDDEN = 10**18


def read_contest(path: str | Path) -> Problem:
    """Read a `.json` or `.json.gz` instance. Raises UserError naming the file and the field that is
    wrong."""
    path = Path(path)
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        return parse_contest(json.loads(text))
    except (OSError, EOFError, zlib.error, ValueError, UserError) as error:
        # The first three are those of gzip; errors of JSON are ValueErrors.
        raise UserError(f"{path}: {error}") from error


def parse_contest(document: Any) -> Problem:
    """The problem in an instance's decoded JSON. Costs are exact up to 2^53. Raises UserError on
    other shapes."""
    problem = _field(document, "problem", "the document")
    nodes, edges = _field(problem, "nodes", "problem"), _field(problem, "edges", "problem")
    intervals, costs, usages = (
        _list(nodes, name, "problem.nodes") for name in ("intervals", "costs", "usages")
    )
    pairs, tables = (_list(edges, name, "problem.edges") for name in ("nodes", "costs"))
    if not len(intervals) == len(costs) == len(usages):
        raise UserError("problem.nodes: intervals, costs and usages differ in length")
    if len(pairs) != len(tables):
        raise UserError(f"problem.edges: expected {len(pairs)} costs, found {len(tables)}")
    try:
        node_costs = tuple(_costs(cost) for cost in costs)
        return Problem(
            costs=node_costs,
            edges=tuple(
                _edge(node_costs, pair, table) for pair, table in zip(pairs, tables, strict=True)
            ),
            usages=tuple(
                _usages(interval, usage) for interval, usage in zip(intervals, usages, strict=True)
            ),
            memory_limit=_limit(problem),
            num_times=max((int(hi) for _, hi in intervals), default=0),
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(f"problem: {error}") from error


def format_solution(choice: Sequence[int]) -> str:
    """An assignment as the contest prints it: a JSON list of strategy numbers in node order."""
    return json.dumps([int(strategy) for strategy in choice])


def _costs(values: list[int]) -> np.ndarray:
    cost = np.array(values, dtype=np.float64)
    cost[cost >= _FORBIDDEN] = np.inf
    return cost


def _edge(node_costs: tuple[np.ndarray, ...], pair: list[int], table: list[int]) -> Edge:
    u, v = (int(node) for node in pair)
    if not (0 <= u < len(node_costs) and 0 <= v < len(node_costs)):
        raise ValueError(f"edge [{u}, {v}]: there are {len(node_costs)} nodes")
    shape = len(node_costs[u]), len(node_costs[v])
    if len(table) != shape[0] * shape[1]:
        raise ValueError(
            f"edge [{u}, {v}]: expected {shape[0]} x {shape[1]} costs, found {len(table)}"
        )
    return Edge(u, v, _costs(table).reshape(shape))


def _usages(interval: list[int], usage: list[int]) -> tuple[Usage, ...]:
    lo, hi = (int(end) for end in interval)
    return (Usage(lo, hi, np.array(usage, dtype=np.int64)),) if lo < hi else ()


def _limit(problem: Any) -> int | None:
    limit = problem.get("usage_limit")
    return None if limit is None else int(limit)


def _field(value: Any, name: str, where: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise UserError(f"{where}: expected an object with the field '{name}'")
    return value[name]


def _list(value: Any, name: str, where: str) -> list[Any]:
    items = _field(value, name, where)
    if not isinstance(items, list):
        raise UserError(f"{where}.{name}: expected a list")
    return items
