"""State is told from trees: whole arguments first, large ones first, then entries by their keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import pytest

from shardopt.frontend.calls.state_pairs import state_pairs


class Moments(NamedTuple):
    count: Any
    mu: Any
    nu: Any


def array(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


PARAMS = {"a": array(4, 8), "b": array(8)}
MOMENTS = Moments(array(dtype="int32"), PARAMS, PARAMS)
BATCH = {"x": array(16, 4), "y": array(16)}
LOSS = array()


def by_path(args: Any, results: Any, **kwargs: Any) -> dict[str, str]:
    """argument path -> result path."""
    paths = [
        [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
        for tree in ((args, kwargs), results)
    ]
    pairs = state_pairs((args, kwargs), results)
    return {paths[0][number]: paths[1][result] for number, result in pairs.items()}


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_whole_arguments_wherever_the_results_have_them(order: tuple[int, ...]) -> None:
    """Parameters are not taken for the moments of the optimizer, which have the same tree."""
    parts = (PARAMS, MOMENTS, LOSS)
    pairs = by_path((PARAMS, MOMENTS, BATCH), tuple(parts[k] for k in order))
    at = {part: order.index(part) for part in order}
    assert pairs["[0][0]['a']"] == f"[{at[0]}]['a']"
    assert pairs["[0][1].mu['b']"] == f"[{at[1]}].mu['b']"
    assert len(pairs) == 7


def test_state_inside_of_the_results_and_by_keyword() -> None:
    pairs = by_path((BATCH,), {"loss": LOSS, "state": (MOMENTS, PARAMS)}, params=PARAMS)
    assert pairs == {
        "[1]['params']['a']": "['state'][1]['a']",
        "[1]['params']['b']": "['state'][1]['b']",
    }


def test_entries_of_a_changed_tree_are_paired_by_their_keys() -> None:
    state = {"params": PARAMS, "step": array(dtype="int32"), "batch": BATCH}
    results = {"step": array(dtype="int32"), "params": PARAMS, "other": array(16, 4)}
    assert by_path((state,), results) == {
        "[0][0]['params']['a']": "['params']['a']",
        "[0][0]['params']['b']": "['params']['b']",
        "[0][0]['step']": "['step']",
    }


def test_single_arrays_pair_with_results_of_their_own() -> None:
    assert by_path((array(4), array(8)), (array(8), LOSS)) == {"[0][1]": "[0]"}
    assert by_path((array(4),), array(4)) == {"[0][0]": ""}
    assert by_path((array(4),), ({"inner": {"part": array(4)}}, LOSS)) == {}
    assert by_path((array(4),), (array(4, dtype="int32"),)) == {}


def test_each_result_replaces_one_argument() -> None:
    ema = by_path((PARAMS, PARAMS), (PARAMS, PARAMS))
    assert ema["[0][0]['a']"] == "[0]['a']" and ema["[0][1]['a']"] == "[1]['a']"
    assert by_path((PARAMS, PARAMS), (PARAMS,)) == {
        "[0][0]['a']": "[0]['a']",
        "[0][0]['b']": "[0]['b']",
    }


def test_nothing_to_pair() -> None:
    assert by_path((), ()) == {}
    assert by_path((None, {}), (None, LOSS)) == {}
