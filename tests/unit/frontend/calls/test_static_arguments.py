"""Static arguments as `jax.jit` counts and names them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import pytest

from shardopt.frontend.calls.static_arguments import StaticArguments
from shardopt.support.errors import UserError


def step(state: Any, mode: Any, batch: Any, *, scale: Any = 1) -> None:
    """A function to take the parameters of."""


CALLS = [((1, "train", 2), {}), ((1,), {"mode": "train", "batch": 2}), ((1, "train"), {"batch": 2})]


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
@pytest.mark.parametrize(
    "static",
    [
        StaticArguments.of(step, 1),
        StaticArguments.of(step, names="mode"),
        StaticArguments.of(step, [1], ["scale"]),
        StaticArguments.of(jax.jit(step, static_argnums=1)),
        StaticArguments.of(jax.jit(step, static_argnames=("mode", "scale"))),
    ],
)
def test_by_number_and_by_name(
    static: StaticArguments, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    traced, by_name, values = static.split(args, kwargs)
    assert list(values.values()) == ["train"]
    assert sorted([*traced, *by_name.values()]) == [1, 2]
    assert static.join(traced, by_name, values) == (args, kwargs)


def test_names_that_have_no_position() -> None:
    static = StaticArguments.of(step, names=["scale"])
    assert static.split((1, 2, 3), {"scale": 4}) == ((1, 2, 3), {}, {"scale": 4})


def test_negative_numbers_count_from_the_end() -> None:
    assert StaticArguments.of(lambda *rest: None, -1).split((1, 2, 3), {}) == ((1, 2), {}, {2: 3})


def test_partials_and_methods() -> None:
    class Trainer:
        def step(self, state: Any, mode: Any) -> None: ...

    static = StaticArguments.of(Trainer().step, names="mode")
    assert static.split((1, "train"), {})[2] == {1: "train"}
    static = StaticArguments.of(functools.partial(step, 0), names="mode")
    assert static.split(("train", 2), {})[2] == {0: "train"}


@pytest.mark.parametrize(("numbers", "names"), [("x", ()), ([0.5], ()), ((), 3), ((), [1])])
def test_wrong_types(numbers: Any, names: Any) -> None:
    with pytest.raises(UserError, match="expected static_arg"):
        StaticArguments.of(step, numbers, names)
