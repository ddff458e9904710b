"""The manager: order, failures and whose fault they are, statistics, and what instrumentation sees."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from jaxlib.mlir import ir

from shardopt.cost.errors import UserError
from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import DiagnosedError, Diagnostic, render
from shardopt.ir.io import load_module
from shardopt.passes import registry
from shardopt.passes.base import Pass, PassContext, PassFailure, option
from shardopt.pipeline.dumps import TreeDumper
from shardopt.pipeline.instrumentation import Instrumentation
from shardopt.pipeline.ir_printer import IRPrinter
from shardopt.pipeline.manager import InvalidModuleError, run_pipeline
from shardopt.pipeline.parser import Leaf, Pipeline
from shardopt.pipeline.timing import Timed, timing_report, timing_tree

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
    action: str = option("count", help="count, fail, user-error, crash or break")

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
            function.attributes["function_type"] = ir.TypeAttr.parse("(tensor<8xf32>) -> tensor<8xf32>")
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
    result = run_pipeline(module, "shardopt-try-run,func.func(cse),canonicalize", handler=seen.append)
    assert str(module).count("stablehlo.add") == 1
    assert "shardopt.tried" in str(module)
    assert [step.leaf.name for step in result.steps] == ["shardopt-try-run", "cse", "canonicalize"]
    assert all(step.seconds > 0 and step.verify_seconds > 0 for step in result.steps)
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
    with pytest.raises(PassFailure, match=r"shardopt-try-run: cluster\.yaml: expected a number of hosts"):
        run_pipeline(module, "shardopt-try-run{action=user-error}")


def test_a_bug_stays_an_exception_and_names_the_pass(module: ir.Module) -> None:
    with pytest.raises(KeyError) as caught:
        run_pipeline(module, "shardopt-try-run{action=crash}")
    assert caught.value.__notes__ == ["while running shardopt-try-run{action=crash}"]


def test_a_pass_that_breaks_the_module_is_a_bug(module: ir.Module) -> None:
    with pytest.raises(InvalidModuleError, match=r"does not verify after shardopt-try-run\{action=break\}\n.*error: "):
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
        run_pipeline(module, "canonicalize,shardopt-try-run{action=fail}", instrumentation=[recorder])
    assert recorder.events == [
        "begin builtin.module(canonicalize,shardopt-try-run{action=fail})",
        "before canonicalize",
        "after canonicalize",
        "before shardopt-try-run",
        "failed shardopt-try-run: PassFailure",
    ]


def test_ir_is_printed_only_after_passes_that_change_it(module: ir.Module) -> None:
    stream = io.StringIO()
    run_pipeline(module, "canonicalize,cse,canonicalize", instrumentation=[IRPrinter(stream, after_change=True)])
    assert stream.getvalue().count("IR Dump") == 1
    assert stream.getvalue().startswith("// -----// IR Dump After cse //----- //\nmodule {\n")


def test_tree_files_can_be_run_again(module: ir.Module, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    run_pipeline(module, "canonicalize,cse", instrumentation=[TreeDumper(tree)])
    assert sorted(path.name for path in tree.iterdir()) == [
        "00_input.mlir",
        "01_canonicalize.mlir",
        "02_cse.mlir",
        "pipeline.txt",
    ]
    again = load_module(tree / "01_canonicalize.mlir", make_context())
    run_pipeline(again, (tree / "pipeline.txt").read_text().split("\n")[0])
    assert str(again) == (tree / "02_cse.mlir").read_text()


def test_timing_report_sums_groups(module: ir.Module) -> None:
    result = run_pipeline(module, "func.func(cse,canonicalize),symbol-dce")
    rows = timing_report(result, [("read", 1.0)]).split("\n")
    names = [row[row.index(")") + 3 :] for row in rows[1:]]
    assert names == ["func.func", "  cse", "  canonicalize", "symbol-dce", "(verify each)", "(read)", "total"]
    seconds = [float(row.split()[0]) for row in rows[1:]]
    assert seconds[0] == pytest.approx(seconds[1] + seconds[2], abs=2e-4)
    assert seconds[-1] == pytest.approx(seconds[0] + sum(seconds[3:6]), abs=3e-4)
