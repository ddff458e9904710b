"""Errors and warnings name keyword arguments; wrong types of any public function are users'
errors."""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import shardopt
from shardopt.frontend.calls.arguments import check_value
from shardopt.frontend.calls.python_words import (
    errors_for_python,
    python_handler,
    python_words,
    spellings,
)
from shardopt.ir.diagnostics import DiagnosedError, diagnostic
from shardopt.options.plan_options import PlanOptions
from shardopt.options.table import rows

TEXT = (Path(__file__).parents[4] / "docs" / "tutorial" / "mlp.mlir").read_text()
CLUSTER = "cpu-test:1x4"
ROOT = Path(__file__).parents[4]
# Of `shardopt-opt`: nobody is told to set them in Python.
PASS_ONLY = ("faster-than", "least-layers", "max-iterations", "sharding-format")
# What speaks to no Python caller: the tools, and pictures with attributes of their own.
OTHER_ROOMS = ("report", "tools")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("batch-coupling=per-microbatch lets each", "batch_coupling='per-microbatch' lets each"),
        ("or the option --cluster, found none", "or the option cluster, found none"),
        ("try --memory-fraction=0.5; --no-unroll", "try memory_fraction=0.5; unroll"),
        ("expected batch-args to be auto", "expected batch_args to be auto"),
        ("shardopt-choose-shardings{time-limit=5}", "shardopt-choose-shardings{time_limit=5}"),
        ("pre-batch-args and stages=2 stay", "pre-batch-args and stages=2 stay"),
        ("expected num-microbatches=4 (or 1)", "expected microbatches=4 (or 1)"),
        ("names with batch-args=INDEX[:DIM] or", "names with batch_args='INDEX[:DIM]' or"),
        ("a method, strategy=direct", "a method, resharding='direct'"),
    ],
)
def test_options_under_the_names_of_keywords(message: str, words: str) -> None:
    assert python_words(message) == words


@pytest.mark.parametrize("row", rows(PlanOptions), ids=lambda row: row.field)
def test_every_spelling_of_an_option_becomes_its_keyword(row: Any) -> None:
    """On command lines, in pipelines, and as passes of each phase call it."""
    for name in {row.name, *filter(None, row.phases.values())}:
        assert python_words(f"expected {name}=2, found") == f"expected {row.field}=2, found"
        if "-" in name:
            assert python_words(f"({name})") == f"({row.field})"
    assert python_words(f"try {row.flag} or --no-{row.name}") == f"try {row.field} or {row.field}"


def test_messages_name_no_option_that_callers_do_not_have() -> None:
    """Whatever a message of the package calls `some-name=` is a keyword to Python callers, or an
    option that passes alone have."""
    known = {*spellings(), *PASS_ONLY}
    unknown = set()
    paths = (ROOT / "shardopt").rglob("*.py")
    for path in (p for p in sorted(paths) if not {*OTHER_ROOMS} & {*p.parts}):
        strings = (
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        for text in strings:
            names = set(re.findall(r"(?<![\w-])([a-z]+(?:-[a-z]+)+)=", text))
            unknown |= {(path.relative_to(ROOT), name) for name in names - known}
    assert not unknown


def test_errors_keep_their_places() -> None:
    with pytest.raises(DiagnosedError) as caught, errors_for_python():
        raise DiagnosedError(
            diagnostic("error", None, "too large for time-limit", ((None, "see --stages"),))
        )
    assert caught.value.diagnostic.message == "too large for time_limit"
    assert caught.value.diagnostic.notes[0].message == "see stages"


def test_warnings_are_warnings() -> None:
    report = python_handler(None)
    with pytest.warns(UserWarning, match="no rule for batch_args"):
        report(diagnostic("warning", None, "no rule for batch-args"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report(diagnostic("remark", None, "nobody asked"))


WRONG = ("2", 2.5, None, True, [], {}, object(), b"x", ("a",), "", math.nan, abs, 10**30, -1)


@pytest.mark.parametrize("row", rows(PlanOptions), ids=lambda row: row.field)
def test_values_of_options_fit_their_types_or_are_refused(row: Any) -> None:
    for value in WRONG:
        try:
            check_value(row, value)
        except shardopt.UserError as error:
            assert f"expected {row.field} to be" in str(error) or row.field in str(error)
        else:
            assert value is None or isinstance(value, int | float | str)


def test_stages_as_text() -> None:
    with pytest.raises(shardopt.UserError) as caught:
        shardopt.optimize(TEXT.encode(), CLUSTER, stages="2")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "expected stages to be an integer of at least 1 or None, found '2'"
    )


OUT_OF_RANGE = {
    "gap": (-1.0, "a number of at least 0"),
    "delta": (-0.5, "a number of at least 0"),
    "time_limit": (math.nan, "a number of at least 0"),
    "memory_fraction": (7.0, "a number of at least 0 and at most 1"),
    "watchdog_seconds": (0, "a positive number"),
    "devices_per_host": (0, "an integer of at least 1"),
    "quick_compile": ("yes", "True or False"),
    "trace": (4, "True or False"),
    "lazy_state": (3, "True or False"),
    "ray_address": (3, "text"),
    "checkpoints": ("folder", "CheckpointOptions(folder, …)"),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_values_out_of_range_are_refused_in_words_of_python(name: str) -> None:
    value, expected = OUT_OF_RANGE[name]
    with pytest.raises(shardopt.UserError) as caught:
        shardopt.parallelize(abs, cluster=CLUSTER, **{name: value})(1.0)  # type: ignore[call-overload]
    assert str(caught.value) == f"expected {name} to be {expected}, found {value!r}"


def test_a_parallelized_function_shows_its_name_and_not_its_address() -> None:
    step = shardopt.parallelize(abs, cluster=CLUSTER, stages=1)
    assert repr(step) == "Parallelized(abs on cpu-test:1x4: 0 plans)"
    step.plan(1.0)
    assert repr(step) == "Parallelized(abs on cpu-test:1x4: 1 plan)"


def test_only_public_names_are_offered() -> None:
    assert {name for name in dir(shardopt) if not name.startswith("__")} == set(shardopt.__all__)


def test_a_negative_budget_is_no_number_of_bytes() -> None:
    with pytest.raises(shardopt.UserError, match="memory_budget: expected bytes such as"):
        shardopt.optimize(TEXT.encode(), CLUSTER, memory_budget=-5)


EXPORTED = jax.export.export(jax.jit(jax.numpy.tanh))(np.ones(4, "float32"))
CALLS: dict[str, Callable[[Any], object]] = {
    "optimize": lambda value: shardopt.optimize(value, CLUSTER),
    "cluster": lambda value: shardopt.optimize(TEXT.encode(), value),
    "shard": lambda value: shardopt.shard(value, CLUSTER, "4"),
    "mesh": lambda value: shardopt.shard(EXPORTED, CLUSTER, value),
    "input_shardings": shardopt.input_shardings,
    "load": shardopt.Plan.load,
    "parallelize": lambda value: shardopt.parallelize(abs, cluster=value),
    "static": lambda value: shardopt.parallelize(abs, cluster=CLUSTER, static_argnames=value or 1),
    "shardings": lambda value: shardopt.shardings(abs, 1.0, mesh=value),
}


@pytest.mark.parametrize("call", CALLS)
def test_wrong_types_are_errors_of_the_user(call: str) -> None:
    """Those that happen to fit, such as a name of a parameter, do no harm."""
    for value in (TEXT, *WRONG):
        if call == "parallelize" and isinstance(value, str):
            continue  # read when the function is called
        if call == "mesh" and value == "2":
            continue
        if call == "static" and (isinstance(value, str) or value == ("a",)):
            continue
        with pytest.raises(shardopt.UserError):
            CALLS[call](value)


def test_text_of_a_module_is_no_path() -> None:
    with pytest.raises(shardopt.UserError, match=r"passed as bytes \(text.encode\(\)\)"):
        shardopt.optimize(TEXT, CLUSTER)
