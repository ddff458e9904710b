"""The manager: order, failures and whose fault they are, statistics, and what instrumentation
sees."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from jaxlib.mlir import ir

from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import DiagnosedError, Diagnostic, native_errors_raised, render
from shardopt.ir.io import load_module
from shardopt.ir.printing import PrintStyle
from shardopt.ir.rewriting import operations
from shardopt.passes import registry
from shardopt.passes.base import Pass, PassContext, PassFailure, option
from shardopt.pipeline.dumps import TreeDumper
from shardopt.pipeline.instrumentation import Instrumentation
from shardopt.pipeline.ir_printer import IRPrinter
from shardopt.pipeline.manager import InvalidModuleError, run_pipeline
from shardopt.pipeline.parser import Leaf, Pipeline, leaves, parse_pipeline
from shardopt.pipeline.reproducer import Reproduction, read_recipe, reproducer_text
from shardopt.pipeline.statistics import (
    OpCounter,
    PassFigures,
    pass_figures,
    statistics_json,
    statistics_report,
    summed,
)
from shardopt.pipeline.timing import (
    Timed,
    merged,
    timing_json,
    timing_list,
    timing_report,
    timing_tree,
    with_rest,
)
from shardopt.support.errors import UserError
from shardopt.support.spans import Seconds, timed

TEXT = """\
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  %1 = stablehlo.add %x, %x : tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
"""


@dataclass(frozen=True)
class TryRun(Pass):
    """Does what its option says."""

    name = "shardopt-try-run"
    summary = "does what its option says"
    action: str = option("count", help="count, fail, user-error, crash, break or solve")

    def run(self, module: ir.Module, pm: PassContext) -> None:
        function = module.body.operations[0]
        first, second, _ = function.regions[0].blocks[0].operations
        if self.action == "fail":
            raise pm.error(second, "expected one sum, found two", notes=[(first, "the other one")])
        if self.action == "user-error":
            raise UserError("cluster.yaml: expected a number of hosts")
        if self.action == "crash":
            raise KeyError("stage")
        if self.action == "break":
            function.attributes["function_type"] = ir.TypeAttr.parse(
                "(tensor<8xf32>) -> tensor<8xf32>"
            )
        if self.action == "solve":
            with timed("solve"):
                sum(range(1000))
            return
        pm.statistic("ops", len(function.regions[0].blocks[0].operations))
        pm.remark("no-sharding-rule", first, "is followed by another")
        pm.warning(None, "only a try")
        function.attributes["shardopt.tried"] = ir.UnitAttr.get()


@pytest.fixture(autouse=True, scope="module")
def _registered():
    module = ModuleType("shardopt_try_run")
    vars(module).update(TryRun=TryRun)
    sys.modules[module.__name__] = module
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.PASSES, TryRun.name, f"{module.__name__}:TryRun")
        yield
    del sys.modules[module.__name__]
    registry.pass_class.cache_clear()


@pytest.fixture
def module(tmp_path: Path) -> ir.Module:
    path = tmp_path / "in.mlir"
    path.write_text(TEXT)
    return load_module(path, make_context())


def test_runs_python_and_native_passes_in_order(module: ir.Module) -> None:
    seen: list[Diagnostic] = []
    result = run_pipeline(
        module, "shardopt-try-run,func.func(cse),canonicalize", handler=seen.append
    )
    assert str(module).count("stablehlo.add") == 1
    assert "shardopt.tried" in str(module)
    assert [step.leaf.name for step in result.steps] == ["shardopt-try-run", "cse", "canonicalize"]
    assert all(step.time.wall > 0 and step.verify_time.wall > 0 for step in result.steps)
    assert result.statistics == {("shardopt-try-run", "ops"): 3}
    assert [(d.severity, d.kind, d.message) for d in seen] == [
        ("remark", "no-sharding-rule", "is followed by another"),
        ("warning", "", "only a try"),
    ]
    assert result.diagnostics == tuple(seen)
    assert (seen[0].position.line, seen[0].position.column) == (2, 8)


def test_a_failure_names_both_ops(module: ir.Module, tmp_path: Path) -> None:
    with pytest.raises(PassFailure) as caught:
        run_pipeline(module, "shardopt-try-run{action=fail}")
    file = tmp_path / "in.mlir"
    assert render(caught.value.diagnostic).split("\n") == [
        f"{file}:3:8: error: expected one sum, found two",
        "    %1 = stablehlo.add %x, %x : tensor<4xf32>",
        "         ^",
        f"{file}:2:8: note: the other one",
        "    %0 = stablehlo.add %x, %x : tensor<4xf32>",
        "         ^",
    ]


def test_a_user_error_without_a_place_gets_the_pass(module: ir.Module) -> None:
    with pytest.raises(
        PassFailure, match=r"shardopt-try-run: cluster\.yaml: expected a number of hosts"
    ):
        run_pipeline(module, "shardopt-try-run{action=user-error}")


def test_a_bug_stays_an_exception_and_names_the_pass(module: ir.Module) -> None:
    with pytest.raises(KeyError) as caught:
        run_pipeline(module, "shardopt-try-run{action=crash}")
    assert caught.value.__notes__ == ["while running shardopt-try-run{action=crash}"]


def test_a_pass_that_breaks_the_module_is_a_bug(module: ir.Module) -> None:
    with pytest.raises(
        InvalidModuleError,
        match=r"does not verify after shardopt-try-run\{action=break\}\n.*error: ",
    ):
        run_pipeline(module, "shardopt-try-run{action=break}")
    assert not issubclass(InvalidModuleError, UserError)


def test_verification_can_be_left_out(module: ir.Module) -> None:
    run_pipeline(module, "shardopt-try-run{action=break}", verify_each=False)


def test_a_native_pass_fails_with_its_own_words() -> None:
    text = """func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
      return %x : tensor<?xf32>
    }"""
    module = load_module(text.encode(), make_context(), name="dynamic.mlir")
    with pytest.raises(DiagnosedError, match="error: ") as caught:
        run_pipeline(module, "stablehlo-refine-arguments{types=tensor<4xf32>,tensor<4xf32>}")
    assert not isinstance(caught.value, PassFailure)
    assert caught.value.diagnostics


def test_a_native_pass_that_leaves_an_invalid_module_is_named(module: ir.Module) -> None:
    """And is no bug of ours: the tool ends with exit code 1."""
    run_pipeline(module, "shardopt-try-run{action=break}", verify_each=False)
    with pytest.raises(DiagnosedError, match=r"does not verify after the C\+\+ pass cse\n"):
        run_pipeline(module, "cse")


def test_an_error_that_a_native_pass_goes_on_after_counts(module: ir.Module) -> None:
    where = ir.Location.file("model.mlir", 3, 4, context=module.context)
    with (
        pytest.raises(DiagnosedError, match=r"model\.mlir:3:4: error: expects four operands"),
        native_errors_raised(module.context),
    ):
        where.emit_error("expects four operands")


class Recorder(Instrumentation):
    """Writes down which hooks ran."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def begin(self, pipeline: Pipeline, module: ir.Module) -> None:
        self.events.append(f"begin {pipeline}")

    def before(self, leaf: Leaf, module: ir.Module) -> None:
        self.events.append(f"before {leaf.name}")

    def after(self, leaf: Leaf, module: ir.Module) -> None:
        self.events.append(f"after {leaf.name}")

    def failed(self, leaf: Leaf, error: Exception, module: ir.Module) -> None:
        self.events.append(f"failed {leaf.name}: {type(error).__name__}")


def test_instrumentation_sees_every_pass(module: ir.Module) -> None:
    recorder = Recorder()
    with pytest.raises(PassFailure):
        run_pipeline(
            module, "canonicalize,shardopt-try-run{action=fail}", instrumentation=[recorder]
        )
    assert recorder.events == [
        "begin builtin.module(canonicalize,shardopt-try-run{action=fail})",
        "before canonicalize",
        "after canonicalize",
        "before shardopt-try-run",
        "failed shardopt-try-run: PassFailure",
    ]


def test_ir_is_printed_only_after_passes_that_change_it(module: ir.Module) -> None:
    stream = io.StringIO()
    run_pipeline(
        module,
        "canonicalize,cse,canonicalize",
        instrumentation=[IRPrinter(stream, after_change=True)],
    )
    assert stream.getvalue().count("IR Dump") == 1
    assert stream.getvalue().startswith("// -----// IR Dump After cse //----- //\nmodule {\n")


def test_changes_count_where_the_text_cuts_them_off() -> None:
    module = load_module(
        b"func.func @main() { %0 = stablehlo.constant dense<[1, 2, 3]> : tensor<3xi32> return }",
        make_context(),
    )
    constant = operations(module.operation, ("stablehlo.constant",))[0]
    stream, [leaf] = io.StringIO(), leaves(parse_pipeline("cse"))
    printer = IRPrinter(stream, after_change=True, diff=True, style=PrintStyle(elements_limit=2))
    printer.before(leaf, module)
    printer.after(leaf, module)
    assert stream.getvalue() == ""
    constant.attributes["value"] = ir.Attribute.parse(
        "dense<[1, 2, 4]> : tensor<3xi32>", module.context
    )
    printer.after(leaf, module)
    assert "IR Dump After cse" in stream.getvalue()
    assert "the change is in what the text leaves out" in stream.getvalue()


def test_tree_files_can_be_run_again(module: ir.Module, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    run_pipeline(module, "canonicalize,cse", instrumentation=[TreeDumper(tree)])
    assert sorted(path.name for path in tree.iterdir()) == [
        "00_input.mlir",
        "01_canonicalize.mlir",
        "02_cse.mlir",
        "pipeline.txt",
        "timing.json",
    ]
    assert [row["name"] for row in json.loads((tree / "timing.json").read_text())][:2] == [
        "canonicalize",
        "cse",
    ]
    again = load_module(tree / "01_canonicalize.mlir", make_context())
    run_pipeline(again, (tree / "pipeline.txt").read_text().split("\n")[0])
    assert str(again) == (tree / "02_cse.mlir").read_text()


def test_timing_report_sums_groups(module: ir.Module) -> None:
    result = run_pipeline(module, "func.func(cse,canonicalize),symbol-dce")
    tree = timing_tree(result, [Timed("Parser", Seconds(1.0, 0.5))])
    rows = timing_report(tree).split("\n")[6:]
    names = [row[row.rindex("%)") + 4 :] for row in rows]
    assert names == [
        "Parser",
        "func.func",
        "  cse",
        "  canonicalize",
        "symbol-dce",
        "Verifier",
        "Total",
    ]
    seconds = [float(row.split()[0]) for row in rows]
    assert seconds[1] == pytest.approx(seconds[2] + seconds[3], abs=2e-4)
    assert seconds[-1] == pytest.approx(sum(seconds[:2]) + sum(seconds[4:6]), abs=3e-4)


def test_timing_lists_each_name_with_its_own_time() -> None:
    def row(name: str, wall: float, *parts: Timed) -> Timed:
        return Timed(name, Seconds(wall, 2 * wall), parts)

    solve = row("solve", 2.0)
    tree = (row("phase", 6.0, row("cse", 1.0), row("shard", 5.0, solve)), row("cse", 0.5))
    assert timing_list(tree) == (row("shard", 3.0), solve, row("cse", 1.5))
    parsed = json.loads(timing_json(tree))
    assert [row["name"] for row in parsed] == ["phase", "cse", "Total"]
    assert parsed[0]["passes"][1]["wall"] == {"duration": 5.0, "percentage": 76.9}
    assert parsed[0]["passes"][1]["cpu"] == {"duration": 10.0, "percentage": 76.9}
    assert merged([tree, tree])[0].parts[1] == row("shard", 10.0, row("solve", 4.0))
    whole = with_rest(tree, Seconds(8.0, 14.0))
    assert whole[-1] == Timed("Rest", Seconds(1.5, 1.0))


def test_spans_of_a_pass_are_recorded(module: ir.Module) -> None:
    result = run_pipeline(module, "shardopt-try-run{action=solve}")
    assert (
        list(result.steps[0].spans) == ["solve"]
        and 0 < result.steps[0].spans["solve"].wall <= result.steps[0].time.wall
    )


def test_statistics_of_every_pass(module: ir.Module) -> None:
    counter = OpCounter()
    result = run_pipeline(
        module, "shardopt-try-run{action=solve},cse,cse", instrumentation=[counter]
    )
    figures = pass_figures(result, counter)
    assert figures[1] == PassFigures("cse", (), {"ops before": 4, "ops after": 3})
    assert statistics_report(figures, "list").split("\n")[3:5] == [
        "cse",
        "  (S)          1 ops removed",
    ]
    assert json.loads(statistics_json(figures))[1]["statistics"] == {
        "ops before": 4,
        "ops after": 3,
    }
    assert summed([figures, figures])[1].figures["ops before"] == 8


def test_a_nest_that_matches_nothing_is_warned_about_once(module: ir.Module) -> None:
    result = run_pipeline(module, "builtin.module(cse,canonicalize),func.func(cse)")
    assert [diagnostic.message.partition(":")[0] for diagnostic in result.diagnostics] == [
        "no op matches 'builtin.module' in 'builtin.module'"
    ]


def test_python_runs_dump_where_the_variable_says(
    module: ir.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDOPT_DUMP_IR_TO", str(tmp_path / "dumps"))
    run_pipeline(module, "cse")
    run_pipeline(module, "canonicalize")
    assert sorted(path.name for path in (tmp_path / "dumps").iterdir()) == ["001", "002"]
    assert (tmp_path / "dumps" / "002" / "01_canonicalize.mlir").exists()


@pytest.mark.parametrize("verify_each", [True, False])
def test_reproducers_round_trip(module: ir.Module, verify_each: bool) -> None:
    recipe = Reproduction('builtin.module(shardopt-try-run{action="a \\"b\\" {c}"})', verify_each)
    text = reproducer_text(module, recipe)
    assert read_recipe(text, "file") == recipe
    assert str(load_module(text.encode(), make_context())) == str(module)
    with pytest.raises(UserError, match="'file' is no reproducer"):
        read_recipe(str(module), "file")
