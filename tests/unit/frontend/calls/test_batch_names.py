"""Arguments of the batch as a caller names them: by number, by name, by trees of dimensions."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from shardopt.frontend.calls.batch_names import batch_names
from shardopt.frontend.calls.call_signature import export_call
from shardopt.frontend.calls.static_arguments import StaticArguments
from shardopt.frontend.steps.step_call import flat_batch, step_call
from shardopt.support.errors import UserError


class Tokens(NamedTuple):
    ids: Any
    mask: Any


STATE, TABLE = jnp.ones((3, 2)), jnp.ones((5, 2))
BATCH = {
    "tokens": Tokens(jnp.ones((8, 2)), jnp.ones((2, 8))),
    "rate": jnp.ones(()),
    "table": TABLE,
    "absent": None,
}
# The leaves of a call in the order of the module.
LEAVES = ["mode", "state", "rate", "table", "ids", "mask", "extra"]


def step(mode: str, state: Any, batch: Any, *, extra: Any) -> Any:
    return jax.tree.map(jnp.sum, (state, batch, extra))


def named(argnums: Any = None, argnames: Any = None, *, by_name: bool = False) -> dict[str, int]:
    """leaf -> dimension."""
    static = StaticArguments.of(step, 0)
    batch = batch_names(argnums, argnames)
    assert batch is not None
    args = (STATE,) if by_name else (STATE, BATCH)
    kwargs = {"extra": jnp.ones(8), **({"batch": BATCH} if by_name else {})}
    call = step_call(step, static, ("mode", *args), kwargs)
    jitted = jax.jit(static.bound(step, call.static), keep_unused=True)
    exported = export_call("parallelize", jitted, "cpu", args, kwargs)
    names = LEAVES[1:]
    return {names[k]: d for k, d in flat_batch("f", batch, static, call, exported).items()}


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        (0, {"table": 0, "ids": 0, "mask": 0}),
        (1, {"table": 1, "ids": 1, "mask": 1}),
        ({"tokens": 0, "rate": None, "table": None, "absent": 0}, {"ids": 0, "mask": 0}),
        (
            {"tokens": Tokens(0, 1), "rate": None, "table": None, "absent": None},
            {"ids": 0, "mask": 1},
        ),
        # Other nodes with the same names.
        (
            {"tokens": {"ids": 0, "mask": None}, "rate": None, "table": 1, "absent": None},
            {"ids": 0, "table": 1},
        ),
    ],
)
def test_trees_of_dimensions(dims: Any, expected: dict[str, int], by_name: bool) -> None:
    assert named({2: dims}, by_name=by_name) == expected
    assert named(None, {"batch": dims}, by_name=by_name) == expected


def test_names_numbers_and_none() -> None:
    assert named(1, "extra") == {"state": 0, "extra": 0}
    assert named((1, 2), ["extra"]) == dict.fromkeys(["state", "table", "ids", "mask", "extra"], 0)
    assert named(()) == {}
    assert batch_names(None, None) is None


@pytest.mark.parametrize(
    ("argnums", "argnames", "message"),
    [
        ("x", None, "expected batch_argnums to be argument numbers, or a dictionary from numbers"),
        (-1, None, r"expected batch_argnums to be argument numbers, .*, found \(-1,\)"),
        (1.5, None, r"expected batch_argnums to be argument numbers, .*, found 1\.5"),
        (None, 2, "expected batch_argnames to be argument names"),
        (
            {2: {"x": "y"}},
            None,
            r"expected batch_argnums\[2\]\['x'\] to be a dimension, None .* 'y'",
        ),
        ({2: -1}, None, r"expected batch_argnums\[2\] to be a dimension, .* found -1"),
        (
            7,
            None,
            r"f: batch_argnums=\(7,\) name no array with a batch dimension .* 3 positional arguments; its arguments are mode, state, batch",
        ),
        (None, {"missing": 1}, r"f: batch_argnames={'missing': 1} name no array"),
        (
            {2: {"tokens": 0, "table": None, "rates": None}},
            None,
            r"expected the batch dimensions of batch to be for 'absent', 'rate', 'table', "
            "'tokens', found 'rates', 'table', 'tokens'; None stands for what has no rows",
        ),
        (
            {2: {"tokens": {"ids": (0, 1), "mask": 0}, "rate": 0, "table": 0, "absent": None}},
            None,
            r"f: expected batch\['rate'\] of the batch to have dimension 0, found shape \(\)",
        ),
        (
            {2: {"tokens": {"ids": (0, 1), "mask": 0}, "rate": None, "table": 0, "absent": 0}},
            None,
            r"dimensions of batch\['tokens'\]\.ids to be for nothing, found '0', '1'",
        ),
    ],
)
def test_errors_name_the_place(argnums: Any, argnames: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        named(argnums, argnames)
