"""Pipelines and options as text: round trips, what is rejected, and where the caret points."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxlib.mlir import ir

from shardopt.passes import registry
from shardopt.passes.base import Pass, PassContext, option
from shardopt.passes.options import OptionError, option_specs, split_options
from shardopt.pipeline import phases
from shardopt.pipeline.parser import (
    NestStep,
    PassStep,
    PhaseStep,
    PipelineError,
    leaves,
    parse_flag,
    parse_pipeline,
)
from shardopt.pipeline.phases import Phase, When, expand_phase, phase_options, phase_range
from shardopt.support.errors import UserError


@dataclass(frozen=True)
class TryOptions(Pass):
    name = "shardopt-try-options"
    summary = "has an option of every type"
    num_stages: int = option(1, help="a number")
    schedule: Literal["1f1b", "gpipe"] = option("1f1b", help="one of some words")
    devices: tuple[int, ...] = option((), help="numbers")
    names: tuple[str, ...] = option(("a",), help="texts")
    cluster: str = option("", help="a text")
    budget: float | None = option(None, help="seconds, or none")
    exact: bool = option(False, help="a switch")

    def __post_init__(self) -> None:
        if self.num_stages < 0:
            raise ValueError(f"num-stages must not be negative, found {self.num_stages}")

    def run(self, module: ir.Module, pm: PassContext) -> None:
        pass


@dataclass(frozen=True)
class TryOthers(Pass):
    name = "shardopt-try-others"
    summary = "shares an option with the other pass"
    num_stages: int = option(1, help="a number")
    depth: int = option(1, help="a number")

    def run(self, module: ir.Module, pm: PassContext) -> None:
        pass


@pytest.fixture(autouse=True, scope="module")
def _registered():
    module = ModuleType("shardopt_try_passes")
    vars(module).update(TryOptions=TryOptions, TryOthers=TryOthers)
    sys.modules[module.__name__] = module
    try_phase = Phase(
        "try",
        "two passes and a switch",
        ("shardopt-try-options", "cse", When("more", ("shardopt-try-others",))),
    )
    last_phase = Phase("last", "one pass", ("shardopt-try-others", "func.func(canonicalize)"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.PASSES, TryOptions.name, f"{module.__name__}:TryOptions")
        patch.setitem(registry.PASSES, TryOthers.name, f"{module.__name__}:TryOthers")
        patch.setattr(phases, "PHASES", (try_phase, last_phase))
        patch.setattr(phases, "PHASE_NAMES", ("try", "last"))
        yield
    del sys.modules[module.__name__]
    registry.pass_class.cache_clear()


def test_options_print_only_what_differs_from_the_default() -> None:
    assert str(TryOptions()) == "shardopt-try-options"
    assert (
        str(TryOptions(num_stages=2, schedule="gpipe"))
        == "shardopt-try-options{num-stages=2 schedule=gpipe}"
    )
    options = TryOptions(devices=(0, 1), names=(), cluster='a "b" {', budget=1e-9, exact=True)
    assert str(options).endswith(
        r'{devices=0,1 names={} cluster="a \"b\" {" budget=1e-09 exact=true}'
    )


@given(
    st.builds(
        TryOptions,
        num_stages=st.integers(0, 10**20),
        schedule=st.sampled_from(["1f1b", "gpipe"]),
        devices=st.lists(st.integers()).map(tuple),
        names=st.lists(st.text()).map(tuple),
        cluster=st.text(),
        budget=st.none() | st.floats(allow_nan=False),
        exact=st.booleans(),
    )
)
def test_a_pass_round_trips_through_a_pipeline(value: TryOptions) -> None:
    pipeline = parse_pipeline(f"builtin.module(cse,{value},func.func(cse))")
    assert pipeline.steps[1] == PassStep(value)
    assert parse_pipeline(str(pipeline)) == pipeline


def test_option_values_as_a_user_writes_them() -> None:
    assert TryOptions.parse("num-stages=2 exact") == TryOptions(2, exact=True)
    assert TryOptions.parse("devices={1,2}  cluster='x y'\n names=\"a,b\",c") == TryOptions(
        devices=(1, 2), cluster="x y", names=("a,b", "c")
    )
    assert TryOptions.parse("cluster={a=1 b={c d}}") == TryOptions(cluster="a=1 b={c d}")
    assert [str(part) for part in split_options("a=1 b c={d e=f}")] == ["a=1", "b", "c={d e=f}"]


@pytest.mark.parametrize(
    ("text", "message", "offset"),
    [
        (
            "stages=2",
            "unknown option of shardopt-try-options: 'stages'; did you mean 'num-stages'?",
            0,
        ),
        (
            "exact num-stages=two",
            "option 'num-stages' of shardopt-try-options expects int, found 'two'",
            6,
        ),
        (
            "schedule=gpip",
            "option 'schedule' of shardopt-try-options expects 1f1b | gpipe, found 'gpip'",
            0,
        ),
        (
            "devices=1,x",
            "option 'devices' of shardopt-try-options expects list of int, found '1,x'",
            0,
        ),
        (
            "exact=yes",
            "option 'exact' of shardopt-try-options expects true or false, found 'yes'",
            0,
        ),
        ("budget=", "option 'budget' of shardopt-try-options expects float, found ''", 0),
        ("cluster", "expects str, found '' (a value is missing)", 0),
        ("exact exact", "option 'exact' of shardopt-try-options is given twice", 6),
        ("exact =2", "expected 'name=value', found '=2'", 6),
        ('exact cluster="a', '" is never closed', 14),
        ("num-stages=-1", "shardopt-try-options: num-stages must not be negative, found -1", -1),
    ],
)
def test_wrong_options_are_diagnosed(text: str, message: str, offset: int) -> None:
    with pytest.raises(OptionError, match=re.escape(message)) as caught:
        TryOptions.parse(text)
    assert caught.value.offset == offset


def test_option_specs_tell_a_user_what_to_write() -> None:
    described = {
        spec.name: (spec.type_text, spec.default_text) for spec in option_specs(TryOptions)
    }
    assert described == {
        "num-stages": ("int", "1"),
        "schedule": ("1f1b | gpipe", "1f1b"),
        "devices": ("list of int", "{}"),
        "names": ("list of str", "a"),
        "cluster": ("str", "none"),
        "budget": ("float", "none"),
        "exact": ("true or false", "false"),
    }


@pytest.mark.parametrize(
    "text",
    [
        "builtin.module()",
        "builtin.module(cse)",
        "builtin.module(canonicalize{max-iterations=2 top-down=false},func.func(cse,canonicalize))",
        "builtin.module(shardopt-try{num-stages=3 more},shardopt-try-others)",
        "builtin.module(cse,builtin.module(func.func(cse)))",
        "builtin.module(builtin.module(cse),builtin.module(cse))",
        "builtin.module(builtin.module(cse))",
    ],
)
def test_pipelines_round_trip(text: str) -> None:
    pipeline = parse_pipeline(text)
    assert str(pipeline) == text
    assert parse_pipeline(str(pipeline)) == pipeline


def test_blanks_and_a_missing_anchor_are_fine() -> None:
    plain = parse_pipeline("builtin.module(cse,func.func(canonicalize))")
    assert parse_pipeline(" builtin.module ( cse ,\n  func.func( canonicalize ) ) ") == plain
    assert parse_pipeline("cse, func.func(canonicalize)") == plain
    assert parse_pipeline("") == NestStep("builtin.module", ())


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("cse,nope", "unknown pass or phase: 'nope'", 4),
        ("shardopt-try-option", "did you mean 'shardopt-try-options'?", 0),
        ("cse,", "expected the name of a pass or phase, found the end", 4),
        ("builtin.module(cse", "expected ',' or ')', found the end", 18),
        ("cse)", "expected ',' or the end of the pipeline, found ')'", 3),
        ("cse canonicalize", "expected ',' or the end of the pipeline, found 'c'", 4),
        ("cse,,cse", "expected the name of a pass or phase, found ','", 4),
        (
            "shardopt-try-options{exact depth=2}",
            "unknown option of shardopt-try-options: 'depth'",
            27,
        ),
        ("shardopt-try-options{exact", "'{' is never closed", 20),
        (
            "cse,canonicalize{depth=2}",
            "unknown option of canonicalize: 'depth'; expected one of ",
            4,
        ),
        ("func.func(shardopt-try-options)", "cannot be nested under func.func", 10),
        ("func.func(shardopt-try)", "cannot be nested under func.func", 10),
        ("sdy-populate-op-sharding-rules", "restricted to 'func.func'", 0),
        ("shardopt-try{depth=2}", "unknown option of shardopt-try: 'depth'", 13),
        ("shardopt-try{more=maybe}", "option 'more' expects true or false, found 'maybe'", 13),
        (
            "cse,shardopt-try{num-stages=x}",
            "shardopt-try: option 'num-stages' of shardopt-try-options expects int",
            4,
        ),
    ],
)
def test_wrong_pipelines_point_at_the_place(text: str, message: str, column: int) -> None:
    with pytest.raises(PipelineError, match=re.escape(message)) as caught:
        parse_pipeline(text)
    assert caught.value.offset == column
    source, caret = str(caught.value).split("\n")[-2:]
    assert (source, caret) == (f"  {text}", "  " + " " * column + "^")


def test_the_caret_stands_under_its_line() -> None:
    with pytest.raises(PipelineError) as caught:
        parse_pipeline("builtin.module(cse,\n  nope,\n  cse)")
    assert str(caught.value).endswith("\n    nope,\n    ^")


def test_a_phase_hands_its_options_to_the_passes_that_have_them() -> None:
    step = parse_pipeline("shardopt-try{num-stages=2 exact=true more=true depth=3}").steps[0]
    assert isinstance(step, PhaseStep)
    expected = (
        "shardopt-try-options{num-stages=2 "
        "exact=true},cse,shardopt-try-others{num-stages=2 depth=3}"
    )
    assert ",".join(map(str, step.steps)) == expected
    assert expand_phase(phases.PHASES[0]) == "shardopt-try-options,cse"
    assert "depth" in phase_options(phases.PHASES[0])


def test_leaves_know_where_they_stand() -> None:
    passes = leaves(parse_pipeline("shardopt-last{depth=2},func.func(cse)"))
    assert [(leaf.name, leaf.anchors[1:], leaf.groups) for leaf in passes] == [
        ("shardopt-try-others", (), ("shardopt-last{depth=2}",)),
        ("canonicalize", ("func.func",), ("shardopt-last{depth=2}", "func.func")),
        ("cse", ("func.func",), ("func.func",)),
    ]


def test_phase_ranges() -> None:
    assert phase_range() == "builtin.module(shardopt-try,shardopt-last)"
    assert phase_range("last") == "builtin.module(shardopt-last)"
    assert phase_range("last", verify_input=True) == "builtin.module(shardopt-last)"
    assert phase_range(last="try", options="exact") == "builtin.module(shardopt-try{exact})"
    options = "num-stages=2 schedule=gpipe"
    assert (
        phase_range(options=options)
        == f"builtin.module(shardopt-try{{{options}}},shardopt-last{{num-stages=2}})"
    )
    with pytest.raises(UserError, match="unknown option of the phases last to last: 'exact'"):
        phase_range("last", options="exact")
    with pytest.raises(UserError, match="phase 'last' comes after phase 'try'"):
        phase_range("last", "try")
    with pytest.raises(UserError, match="unknown phase: 'tri'; did you mean 'try'"):
        phase_range("tri")


def test_flags_nest_native_passes_by_themselves() -> None:
    assert (
        str(parse_flag("sdy-populate-op-sharding-rules", ""))
        == "func.func(sdy-populate-op-sharding-rules)"
    )
    assert str(parse_flag("canonicalize", "max-iterations=2")) == "canonicalize{max-iterations=2}"
    assert str(parse_flag("shardopt-try-others", "depth=2")) == "shardopt-try-others{depth=2}"
    assert str(parse_flag("shardopt-try", "exact")) == "shardopt-try{exact}"
    with pytest.raises(PipelineError, match="unknown option of canonicalize"):
        parse_flag("canonicalize", "depth=2")
