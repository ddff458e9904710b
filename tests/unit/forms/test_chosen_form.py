"""Strategies and rows of rematerialization come back from the attributes that they are written
to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxlib.mlir import ir

from shardopt.dialect.plain_mesh import read_plain_mesh, write_plain_mesh
from shardopt.dialect.rematerialization import (
    Recompute,
    SeparateCopy,
    read_rematerialization,
    write_rematerialization,
)
from shardopt.dialect.strategy import OpStrategy, parse_strategy
from shardopt.forms.chosen_form import violations
from shardopt.ir.context import make_context
from shardopt.ir.rewriting import functions
from shardopt.mesh.mesh import Mesh, Sharding

AXES = st.lists(st.sampled_from(["x", "y", "z"]), max_size=2, unique=True).map(tuple)
SHARDINGS = st.builds(Sharding, st.lists(AXES, max_size=3).map(tuple), AXES)
SIDES = st.lists(SHARDINGS, max_size=3).map(tuple)
STRATEGIES = st.tuples(SIDES, st.lists(st.tuples(SHARDINGS, SHARDINGS), max_size=2)).map(
    lambda drawn: OpStrategy(drawn[0], tuple(a for a, _ in drawn[1]), tuple(b for _, b in drawn[1]))
)
NUMBERS = st.lists(st.integers(0, 99), min_size=1, max_size=4).map(tuple)
ROWS = st.one_of(
    st.builds(Recompute, NUMBERS, st.lists(STRATEGIES, max_size=2).map(tuple), NUMBERS),
    st.builds(SeparateCopy, st.integers(0, 3), NUMBERS),
)
EMPTY = "func.func public @main() attributes {shardopt.cost = {}} { return }"


@given(STRATEGIES)
def test_strategies_are_read_back(strategy: OpStrategy) -> None:
    assert parse_strategy(str(strategy)) == strategy


@pytest.mark.parametrize(
    "text", ["", "[{x}]", "[{x}] -> {x}", "[{x}] -> [{x}] from", "[{x}] [{x}] -> [{x}]"]
)
def test_other_texts_are_no_strategies(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_strategy(text)


@given(st.lists(ROWS, max_size=3))
def test_rows_of_rematerialization_are_read_back(rows: list[Recompute | SeparateCopy]) -> None:
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(EMPTY)
        main = next(functions(module))
        write_rematerialization(main, rows)
        assert read_rematerialization(main) == tuple(rows)


def test_the_mesh_of_a_plain_module_is_read_back() -> None:
    mesh = Mesh("mesh", (("x", 2), ("y", 3)), tuple(range(6)))
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(EMPTY)
        main = next(functions(module))
        write_plain_mesh(main, mesh)
        assert read_plain_mesh(main) == mesh
        assert [violation[1] for violation in violations(module)] == [
            "expected attribute 'shardopt.strategy' on 'func.func', found none"
        ]
