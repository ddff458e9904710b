"""Naming operations and values of a module."""

from __future__ import annotations

import pytest

from shardopt.extract.mesh_graphs import read_plain
from shardopt.extract.op_graph import sharding_rules
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions
from shardopt.mesh.mesh import parse_mesh
from shardopt.passes.sharding.reports.selection import select
from shardopt.support.errors import UserError

MODULE = """
func.func public @main(%w: tensor<4x4xf32> loc("params['w']"), %x: tensor<4x4xf32> loc("batch")) -> tensor<4x4xf32> {
  %0 = stablehlo.add %w, %x : tensor<4x4xf32> loc("jit(step)/block_0/add")
  %1 = stablehlo.tanh %0 : tensor<4x4xf32> loc("jit(step)/block_0/tanh")
  %2 = stablehlo.add %1, %x : tensor<4x4xf32> loc("jit(step)/block_1/add")
  return %2 : tensor<4x4xf32>
}
"""


def names(text: str) -> list[tuple[int, str]]:
    with make_context() as context:
        module = load_module(MODULE.encode(), context)
        with sharding_rules(module):
            graph = read_plain(next(functions(module)), parse_mesh("2"))
        return [(selected.op, selected.name) for selected in select(graph, text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("arg1", [(-1, "arg1")]),
        ("arg2", []),
        ("result0", [(2, "result0")]),
        ("result1", []),
        ("add", [(0, "add:0"), (2, "add:1")]),
        ("add:1", [(2, "add:1")]),
        ("add:2", []),
        (r"params\['w'\]", [(-1, "params['w']")]),
        ("block_0", [(0, "add:0"), (1, "tanh:0")]),
        ("block_1/", [(2, "add:1")]),
        ("nowhere", []),
    ],
)
def test_selectors(text: str, expected: list[tuple[int, str]]) -> None:
    assert names(text) == expected


def test_a_bad_expression_is_refused() -> None:
    with pytest.raises(UserError, match=r"found 'a\(': missing \)"):
        names("a(")
