"""A mesh of three axes over eight host devices: the numbers of one device, and a plan that uses
every axis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardopt.solve.assignment.search import repeated_layers
from tests.e2e.models import MODELS, mlp
from tests.e2e.test_sharding_against_xla import SLOW, Compiled, check_numbers, compile_sharded

HOST = replace(SLOW, groups=(replace(SLOW.groups[0], devices_per_host=8),))
TWO_HOSTS = replace(SLOW, groups=(replace(SLOW.groups[0], hosts=2),))


def axes_of(compiled: Compiled) -> set[str]:
    """The axes that split an argument or result."""
    specs = (*compiled.function.arguments, *compiled.function.results)
    return {axis for spec in specs for axis in spec.sharding.axes}


def test_a_step_of_an_mlp_uses_all_axes() -> None:
    compiled = compile_sharded(mlp(16, 16, 2), "2x2x2", cluster=HOST)
    check_numbers(compiled)
    assert axes_of(compiled) == {"x", "y", "z"}


def test_equal_layers_tied_and_freed_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_layers, "_MAX_DIRECT_ENTRIES", 0)
    compiled = compile_sharded(mlp(16, 16, 6), "2x2x2", cluster=TWO_HOSTS, gap=0.05)
    check_numbers(compiled)
    assert axes_of(compiled) == {"x", "y", "z"}


@pytest.mark.slow
def test_a_step_of_a_transformer_gives_the_same_numbers() -> None:
    """Of the best plan or not: proving that it is takes most of the time."""
    check_numbers(compile_sharded(MODELS["gpt"](), "2x2x2", cluster=TWO_HOSTS, gap=0.05))
