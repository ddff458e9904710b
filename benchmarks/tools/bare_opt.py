"""An opt tool of jaxlib's bindings alone, to tell what its C++ does from what shardopt-opt does.

    python -m benchmarks.tools.bare_opt FILE [--PASS[=OPTIONS]] … [--split-input-file]

It imports nothing of shardopt: parser, verifiers, passes and printer are those of the wheel.
Modules go to stdout, and `LINE:COLUMN: error: …`, also of warnings, to stderr. Other flags are
ignored."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import mhlo, mpmd, sdy, stablehlo

SPLIT = "// -----"


def main(argv: Sequence[str]) -> int:
    flags = {each.lstrip("-") for each in argv if each.startswith("-")}
    (path,) = (each for each in argv if not each.startswith("-"))
    text = sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")
    chunks = _split(text) if "split-input-file" in flags else [text]
    context = _context("allow-unregistered-dialect" in flags)
    passes = [_pass(each) for each in argv if each.startswith("-")]
    outputs = [_run(chunk, [each for each in passes if each], context) for chunk in chunks]
    print(f"{SPLIT}\n".join(output or "" for output in outputs), end="")
    return int(None in outputs)


def _split(text: str) -> Iterator[str]:
    """The parts between lines that split, each with the line numbers that it has in the whole."""
    start = 0
    for end in (*re.finditer(rf"^{SPLIT}.*\n", text, re.M), None):
        yield "\n" * text.count("\n", 0, start) + text[start : end.start() if end else None]
        start = end.end() if end else len(text)


def _context(unregistered: bool) -> ir.Context:
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    context.allow_unregistered_dialects = unregistered
    context.emit_error_diagnostics = True
    context.enable_multithreading(False)
    mpmd.register_dialect(context)
    sdy.register_dialect(context)
    stablehlo.register_stablehlo_passes()
    mhlo.register_mhlo_passes()
    context.attach_diagnostic_handler(_report)
    return context


def _report(diagnostic: ir.Diagnostic) -> bool:
    severity = diagnostic.severity.name.lower()
    # of the file, not of texts inside of it; what is made for it has line 0
    position = re.search(r'"-":([1-9]\d*:\d+: )', str(diagnostic.location))
    print(f"{position[1] if position else ''}{severity}: {diagnostic.message}", file=sys.stderr)
    for note in diagnostic.notes:
        _report(note)
    return True


def _pass(flag: str) -> str:
    """In the syntax of pipelines; nothing for what is no pass."""
    name, _, options = flag.lstrip("-").partition("=")
    if name == "pass-pipeline":
        return re.sub(r"^builtin\.module\((.*)\)$", r"\1", options)
    with ir.Context():
        try:
            passmanager.PassManager.parse(f"any({name})")
        except ValueError:
            return ""
    return f"{name}{{{options}}}" if options else name


def _run(chunk: str, passes: Sequence[str], context: ir.Context) -> str | None:
    """What is printed, or nothing where parser or passes fail."""
    with context:
        try:
            module = ir.Module.parse(chunk)
            for each in passes:
                _manager(each).run(module.operation)
        except (ir.MLIRError, ValueError) as error:
            print(f"error: {error}" if isinstance(error, ValueError) else "", file=sys.stderr)
            return None
        return f"{module}"


def _manager(text: str) -> passmanager.PassManager:
    """For the module, or for every function where that is what the pass takes."""
    try:
        return passmanager.PassManager.parse(f"builtin.module({text})")
    except ValueError:
        return passmanager.PassManager.parse(f"builtin.module(func.func({text}))")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
