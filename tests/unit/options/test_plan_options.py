"""The table of planning options and its faces: keyword arguments, command line, passes, plan files
and docs agree."""

from __future__ import annotations

import ast
import inspect
from argparse import Namespace
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import jsonschema
import pytest

import shardopt
from scripts.doc_options import keywords_module, option_rows
from shardopt.frontend.calls.arguments import options_of
from shardopt.frontend.calls.phase_options import INTRA, phase_text
from shardopt.frontend.planning.optimize import optimize
from shardopt.frontend.plans.plan_document import kept_options
from shardopt.frontend.spmd.shard import shard
from shardopt.frontend.steps.parallelize import ParallelizeKeywords, parallelize
from shardopt.options import keywords, names
from shardopt.options.plan_options import PlanOptions
from shardopt.options.signatures import shows_options
from shardopt.options.table import Function, OptionRow, row, row_of, rows
from shardopt.passes.base import Pass, PassContext, plan_option
from shardopt.passes.options import OptionSpec, option_specs
from shardopt.passes.registry import PASSES, pass_class
from shardopt.pipeline.manager import run_pipeline
from shardopt.pipeline.parser import parse_pipeline
from shardopt.pipeline.phases import (
    PHASE_NAMES,
    PHASES,
    PIPELINES,
    Phase,
    When,
    expand_phase,
    phase_options,
)
from shardopt.planfile.fields import schema
from shardopt.planfile.option_fields import options_reader
from shardopt.runtime.driver import open_run
from shardopt.runtime.options import RunOptions
from shardopt.support.documents import errors_of
from shardopt.tools.common import ToolParser
from shardopt.tools.option_flags import add_options
from shardopt.tools.plan import file_command

TORCH_FILES = Path(__file__).parents[1] / "schedule" / "torch_files"

ROOT = Path(__file__).parents[3]
ROWS = rows(PlanOptions)
FUNCTIONS: dict[Function, Any] = {"optimize": optimize, "shard": shard, "parallelize": parallelize}
KEYWORDS: dict[Function, Any] = {
    "optimize": keywords.PlanKeywords,
    "shard": keywords.ShardKeywords,
    "parallelize": keywords.StepKeywords,
}
# Options of a pass that mean the same and begin with another default: they ask the stage first.
OTHER_DEFAULTS = {
    ("shardopt-choose-shardings", "intra-op"),
    ("shardopt-rotate-keys", "intra-op"),
}

by_row = pytest.mark.parametrize("option", ROWS, ids=lambda option: option.field)


def find_phase(name: str) -> Phase:
    return next(phase for phase in (*PHASES, *PIPELINES) if phase.name == name)


def takers(phase: Phase, name: str) -> list[tuple[str, OptionSpec]]:
    """The passes of a phase that have an option, and what they say of it."""
    steps = [
        step for each in phase.steps for step in (each.steps if isinstance(each, When) else (each,))
    ]
    specs = [
        (step, spec) for step in steps if step in PASSES for spec in option_specs(pass_class(step))
    ]
    return [(step, spec) for step, spec in specs if spec.name == name]


def plan_parser(table: type = PlanOptions) -> ToolParser:
    parser = ToolParser(prog="plan")
    add_options(parser, table)
    return parser


# ---- every option on every face ----


@by_row
def test_phases_take_what_the_table_hands_them(option: OptionRow) -> None:
    for phase, name in option.phases.items():
        assert (name or option.name) in phase_options(find_phase(phase)), phase


@by_row
def test_passes_have_the_default_and_the_type_of_the_table(option: OptionRow) -> None:
    for phase, name in option.phases.items():
        for step, spec in takers(find_phase(phase), name or option.name):
            if (step, spec.name) not in OTHER_DEFAULTS:
                assert (
                    spec.default_text
                    == OptionSpec("", "", option.type, option.pass_default, "").default_text
                )
            if get_args(spec.type) and option.base is str and option.choices:
                assert set(get_args(spec.type)) & set(option.choices), (step, spec.name)
            elif spec.type != tuple[str, ...]:
                assert spec.type is option.base, (step, spec.name)


@by_row
def test_functions_take_it_with_its_default(option: OptionRow) -> None:
    for name, function in FUNCTIONS.items():
        parameters = inspect.signature(function).parameters
        if name not in option.functions:
            assert option.field not in parameters or option.field == "cluster"
            assert option.field not in get_type_hints(KEYWORDS[name])
            continue
        assert parameters[option.field].default == option.default
        assert f"\n{option.field} " in function.__doc__
        hint = get_type_hints(KEYWORDS[name])[option.field]
        accepted = option.accepts.get(name)
        assert hint == (eval(accepted, vars(names) | vars(keywords)) if accepted else option.type)


@by_row
def test_the_command_line_has_it_with_its_default(option: OptionRow) -> None:
    parser = plan_parser()
    assert option.flag in parser.option_strings
    assert parser.get_default(option.field) == (option.default if option.has_default else "")
    if option.base is bool:
        assert getattr(parser.parse_args([option.flag]), option.field) is not option.default
        return
    text = (
        option.choices[-1] if option.choices else {int: "7", float: "0.25", str: "x"}[option.base]
    )
    value = getattr(parser.parse_args([option.flag, text]), option.field)
    assert value == (text if option.choices else option.base(text))
    if option.is_optional and option.base is int:
        assert getattr(parser.parse_args([option.flag, "auto"]), option.field) is None


@by_row
def test_the_schema_of_plan_files_has_it(option: OptionRow) -> None:
    properties = schema()["properties"]["options"]["properties"]
    assert (option.field in properties) == (option.in_file != "no")
    if option.in_file == "no":
        return
    assert properties[option.field]["description"] == option.help
    valid = jsonschema.Draft202012Validator(properties[option.field]).is_valid
    assert not option.has_default or valid(option.default)
    assert all(map(valid, option.choices)) and not valid([])
    assert valid(None) == option.is_optional


def test_the_docs_have_every_option() -> None:
    assert [cells[0] for cells in option_rows()] == [
        f"`{field.name}`" for field in fields(PlanOptions)
    ]


def test_no_pass_declares_an_option_of_planning_again() -> None:
    """What a phase is handed is made by `plan_option` in each of its passes."""
    handed = {name or each.name for each in ROWS for name in each.phases.values()}
    for path in sorted((ROOT / "shardopt" / "passes").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.value or node).startswith(
                "option("
            ):
                assert ast.unparse(node.target).replace("_", "-") not in handed, path


def test_defaults_leave_phases_to_themselves() -> None:
    texts = {name: phase_text(PlanOptions("c.yaml"), name) for name in (*PHASE_NAMES, INTRA)}
    assert {name: text for name, text in texts.items() if text} == {
        "import": "unroll=true",
        "cluster": "split-stacks=true",
        "stage": "cluster=c.yaml",
        "intra": "cluster=c.yaml unroll=true",
    }


@pytest.mark.parametrize(
    ("options", "phase", "text"),
    [
        ({"stages": 3}, "cluster", "split-stacks=true least-layers=3"),
        ({"stages": 1}, "cluster", ""),
        ({"stages": 3, "split_stacks": False}, "cluster", "least-layers=3"),
        ({"layers": "search"}, "cluster", "split-stacks=true"),
        ({"inter_op": "equal-op"}, "cluster", "method=equal-op split-stacks=true"),
        ({"inter_op": "equal-op"}, "stage", "cluster=c.yaml inter-op=equal-layer"),
        ({"schedule": "order.csv"}, "stage", "cluster=c.yaml schedule=gpipe"),
        ({"schedule": "order.csv"}, "schedule", "schedule=order.csv"),
        (
            {"schedule": str(TORCH_FILES / "dualpipe-v.csv")},
            "stage",
            "cluster=c.yaml schedule=dualpipe-v split-backward=true",
        ),
        (
            {"schedule": "zero-bubble"},
            "stage",
            "cluster=c.yaml schedule=zero-bubble split-backward=true",
        ),
        ({"gap": 0.0, "time_limit": 5.0}, "shard", "gap=0.0 time-limit=5.0"),
        ({"constraints": "a b.yaml"}, "shard", 'constraints="a b.yaml"'),
    ],
    ids=str,
)
def test_what_phases_are_told(options: dict[str, Any], phase: str, text: str) -> None:
    assert phase_text(PlanOptions("c.yaml", **options), phase) == text


# ---- an option that is added to the table ----


@dataclass(frozen=True)
class More(PlanOptions):
    """The table with one more row."""

    colour: Literal["red", "blue"] = row(
        "red", help="what to paint", phases={"shard": "paint"}, in_file="changed"
    )


@dataclass(frozen=True)
class Paint(Pass):
    name = "shardopt-paint"
    summary = "paint the module"

    paint: Literal["red", "blue"] = plan_option("colour", table=More)

    def run(self, module: Any, pm: PassContext) -> None:
        """Nothing to do."""


def test_a_new_option_is_a_keyword() -> None:
    @shows_options("optimize", More)
    def plan(model: str, **options: Any) -> None:
        """Plan."""

    assert inspect.signature(plan).parameters["colour"].default == "red"
    assert "colour          what to paint" in (plan.__doc__ or "")
    source = keywords_module(More)
    assert (
        '    colour: Literal["red", "blue"]\n    """What to paint. Default: \'red\'."""' in source
    )
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    assert (
        "colour" in namespace["PlanKeywords"].__annotations__
        and "colour" not in namespace["ShardKeywords"].__annotations__
    )


def test_a_new_option_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    parser = plan_parser(More)
    assert (
        parser.parse_args(["--colour", "blue"]).colour == "blue"
        and parser.parse_args([]).colour == "red"
    )
    assert "what to paint (default red)" in parser.format_help()
    with pytest.raises(SystemExit):
        parser.parse_args(["--colour", "green"])
    assert "invalid choice: 'green'" in capsys.readouterr().err


def test_a_new_option_is_one_of_a_pass() -> None:
    (spec,) = option_specs(Paint)
    assert (spec.name, spec.default, spec.help) == ("paint", "red", "what to paint")
    assert str(Paint.parse("paint=blue")) == "shardopt-paint{paint=blue}"
    assert phase_text(More("c.yaml", colour="blue"), "shard") == "paint=blue"
    assert phase_text(More("c.yaml"), "shard") == ""


def test_a_new_option_is_a_field_of_plan_files() -> None:
    reader = options_reader(More)
    assert reader.schema()["properties"]["colour"] == {
        "enum": ["red", "blue"],
        "description": "what to paint",
    }
    assert errors_of(reader, {"colour": "blue"}) == ({"colour": "blue"}, ())
    assert errors_of(reader, {"colour": "green"})[1] == (
        "field 'colour': expected one of red, blue, got 'green'",
    )
    assert kept_options(More("c.yaml", colour="blue"))["colour"] == "blue"
    assert kept_options(More("c.yaml")) == kept_options(PlanOptions("c.yaml"))


def test_a_new_option_is_in_the_docs() -> None:
    *_, last = option_rows(More)
    assert last[:5] == ("`colour`", "`--colour`", "`red | blue`", "`'red'`", "what to paint")


def test_a_name_that_the_table_does_not_have() -> None:
    with pytest.raises(LookupError, match="PlanOptions has no option 'colour'"):
        row_of(PlanOptions, "colour")


# ---- the options that were options of a pass only ----

LATE = {"gap": 0.25, "time_limit": 5.0, "memory_fraction": 0.5, "unreduced": "off"}
LATE_TEXT = "{memory-fraction=0.5 gap=0.25 unreduced=off time-limit=5.0}"


def test_they_reach_the_pass_from_keywords() -> None:
    text = phase_text(options_of("optimize", "cpu-test:1x4", LATE), "shard")
    steps = str(parse_pipeline(f"builtin.module({expand_phase(find_phase('shard'), text)})"))
    assert f"shardopt-choose-shardings{LATE_TEXT}" in steps


def test_they_reach_the_pass_from_the_command_line() -> None:
    flags = [
        word for name, value in LATE.items() for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    parser = plan_parser()
    args: Namespace = parser.parse_args(["--cluster", "cpu-test:1x4", *flags])
    options = file_command.planning_options(parser, args)
    assert options == options_of("optimize", "cpu-test:1x4", LATE)


def test_they_reach_the_pass_from_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    ran: list[str] = []

    def run(module: Any, pipeline: str, **others: Any) -> Any:
        ran.append(pipeline)
        return run_pipeline(module, pipeline, **others)

    monkeypatch.setattr("shardopt.pipeline.manager.run_pipeline", run)
    exported = jax.export.export(jax.jit(lambda x: x @ x))(jax.ShapeDtypeStruct((8, 8), "float32"))
    shardopt.shard(exported, "cpu-test:1x4", "2x2", **LATE)
    (pipeline,) = ran
    options = pipeline.removeprefix("builtin.module(shardopt-intra{").removesuffix("})")
    assert all(
        f"{name.replace('_', '-')}={value}" in options.split() for name, value in LATE.items()
    )


def test_they_are_kept_in_plan_files_where_they_were_changed() -> None:
    kept = kept_options(PlanOptions("c.yaml", **LATE))
    assert {name: kept[name] for name in LATE} == LATE
    assert not LATE.keys() & kept_options(PlanOptions("c.yaml")).keys()
    assert {"cluster", "plan", "explain"}.isdisjoint(kept)


def test_a_searched_number_of_layers_is_read_again() -> None:
    options = PlanOptions("c.yaml", layers="search")
    assert errors_of(options_reader(PlanOptions), kept_options(options)) == (
        kept_options(options),
        (),
    )


# ---- calls ----


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("optimize", {"stage": 2}, "optimize: unknown option: 'stage'; did you mean 'stages'?"),
        ("shard", {"stages": 2}, "shard: unknown option: 'stages'"),
        ("optimize", {"constraints": 3}, "expected constraints to be a file, found int"),
        ("optimize", {"plan": None}, "expected plan to be a file, found NoneType"),
    ],
)
def test_wrong_keywords(function: Function, options: dict[str, Any], message: str) -> None:
    with pytest.raises(shardopt.UserError, match=message.replace("?", r"\?")):
        options_of(function, "cpu-test:1x4", options)


def test_keywords_in_other_forms() -> None:
    keywords = {"batch_args": {0: 1, "x": 0}, "memory_budget": 512, "profile": Path("p.json")}
    options = options_of("optimize", Path("c.yaml"), keywords)
    assert options == PlanOptions(
        "c.yaml", batch_args="0:1,x:0", memory_budget="512", profile="p.json"
    )


def test_auto_is_none_where_the_planner_chooses() -> None:
    """As on the command line."""
    words = dict.fromkeys(("microbatches", "layers", "stages"), "auto")
    options = options_of("parallelize", "c.yaml", words)
    assert options == PlanOptions("c.yaml", microbatches=None, layers=None, stages=None)
    with pytest.raises(shardopt.UserError, match="expected mcmc_seed to be an integer"):
        options_of("optimize", "c.yaml", {"mcmc_seed": "auto"})


def test_options_of_runs_are_keywords_with_the_defaults_of_their_class() -> None:
    program, *parameters = inspect.signature(open_run).parameters.values()
    assert program.name == "program"
    assert {each.name: each.default for each in parameters} == {
        field.name: field.default for field in fields(RunOptions)
    }
    assert [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY] == ["backend"]
    with pytest.raises(TypeError, match="bakend"):
        open_run(None, bakend="local")  # type: ignore[call-arg]


def test_parallelize_says_of_runs_what_run_options_say() -> None:
    added = (
        get_type_hints(ParallelizeKeywords).keys() - get_type_hints(keywords.StepKeywords).keys()
    )
    of_run = {field.name for field in fields(RunOptions)}
    assert added - of_run == {"cache", "restarts"}
    assert {"backend", "platform", "transport", "quick_compile", "checkpoints", "limits"} <= added
