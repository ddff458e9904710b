"""Running C++ passes: checked before use, one at a time, with their own error text."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from jaxlib.mlir import ir, passmanager

from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import Handler, native_errors_raised

# The bindings cannot list what is registered; these serve only to suggest a name for a misspelled
# one.
COMMON_NATIVE_PASSES = (
    "canonicalize",
    "chlo-legalize-to-stablehlo",
    "cse",
    "loop-invariant-code-motion",
    "print-op-stats",
    "sccp",
    "sdy-add-data-flow-edges",
    "sdy-aggressive-propagate",
    "sdy-apply-sharding-constraints",
    "sdy-basic-propagate",
    "sdy-close-shardings",
    "sdy-convert-global-to-local",
    "sdy-drop-sharding-rules",
    "sdy-export-pipeline",
    "sdy-import-pipeline",
    "sdy-inline-meshes",
    "sdy-insert-explicit-reshards",
    "sdy-lift-inlined-meshes",
    "sdy-op-priority-propagate",
    "sdy-populate-op-sharding-rules",
    "sdy-propagation-pipeline",
    "sdy-reshard-to-collectives",
    "sdy-sharding-constraint-to-reshard",
    "sdy-sharding-group-import",
    "sdy-sink-data-flow-edges",
    "sdy-user-priority-propagate",
    "shape-legalize-to-stablehlo",
    "stablehlo-canonicalize-dynamism",
    "stablehlo-check-shape-assertions",
    "stablehlo-compatibility-expander",
    "stablehlo-complex-math-expander",
    "stablehlo-convert-to-signless",
    "stablehlo-legalize-composite-to-call",
    "stablehlo-legalize-deprecated-ops",
    "stablehlo-legalize-quant-to-math",
    "stablehlo-legalize-to-linalg",
    "stablehlo-legalize-to-vhlo",
    "stablehlo-refine-arguments",
    "stablehlo-refine-shapes",
    "stablehlo-wrap-in-composite",
    "strip-debuginfo",
    "symbol-dce",
    "topological-sort",
    "vhlo-legalize-to-stablehlo",
    "vhlo-to-version",
)


def native_pipeline_error(pipeline: str) -> str | None:
    """Why `pipeline` (anchored, such as `builtin.module(func.func(cse))`) cannot run, in C++'s
    words, or None."""
    said: list[str] = []
    try:
        with _collecting_stderr(said):
            passmanager.PassManager.parse(pipeline, _scratch_context())
    except ValueError as error:
        lines = [line.strip().removeprefix(": ") for line in (*said, *str(error).splitlines())]
        return "; ".join(dict.fromkeys(filter(None, lines)))
    return None


@contextmanager
def _collecting_stderr(lines: list[str]) -> Iterator[None]:
    """What C++ writes there goes into `lines`: pipelines complain about their options past the
    bindings."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            lines += file.read().decode(errors="replace").splitlines()


def is_native_pass(name: str) -> bool:
    """True when C++ knows a pass or pass pipeline of this name, on whatever op it runs."""
    error = native_pipeline_error(f"any({name})")
    return error is None or "does not refer to a registered pass" not in error


def native_options(step: str) -> str:
    """All options of a C++ pass, given as `name{options}`, with their defaults: `a=1 b=2`; of a
    pipeline, which is several passes, those given."""
    given = step.partition("{")
    for anchor in ("any", "func.func", "builtin.module"):  # some passes run on one kind of op only
        if native_pipeline_error(f"{anchor}({step})") is None:
            name, _, options = native_text(step, (anchor,)).partition("{")
            if name == given[0]:
                return options.removesuffix("}").strip()
            break
    return given[2].removesuffix("}")


def native_text(step: str, anchors: tuple[str, ...]) -> str:
    """A C++ pass under `anchors`, outermost first, as C++ writes it: with all its options, and a
    pipeline as the passes that it stands for. Raises ValueError for one that does not parse."""
    opening = "".join(f"{anchor}(" for anchor in anchors)
    whole = opening + step + ")" * len(anchors)
    text = str(passmanager.PassManager.parse(whole, _scratch_context()))
    # C++ leaves blanks where an option has no value.
    return " ".join(text.removeprefix(opening)[: -len(anchors)].replace("{ ", "{").split())


def run_native(module: ir.Module, pipeline: str, handler: Handler | None = None) -> None:
    """Run C++ passes on `module`; handles to ops inside it are invalid afterwards.

    `pipeline` is anchored at builtin.module. Warnings and remarks go to `handler`. Raises
    DiagnosedError when a pass fails and ValueError when the pipeline does not parse."""
    manager = passmanager.PassManager.parse(pipeline, module.context)
    manager.enable_verifier(False)  # callers verify, and can then say which pass broke the module
    with native_errors_raised(module.context, handler):
        manager.run(module.operation)


def verify(module: ir.Module) -> None:
    """Run the verifiers of all ops in `module`. Raises DiagnosedError with every error found."""
    with native_errors_raised(module.context):
        module.operation.verify()


@cache
def _scratch_context() -> ir.Context:
    return make_context()
