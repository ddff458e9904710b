"""`--verify-roundtrip`: a module must survive being printed and parsed again."""

from __future__ import annotations

from jaxlib.mlir import ir

from shardopt.ir.diagnostics import DiagnosedError, Diagnostic, native_errors_raised
from shardopt.ir.io import module_bytecode
from shardopt.ir.printing import PrintStyle

# Locations count as well; the generic form depends on no printer of a single op.
_STYLE = PrintStyle(debug_info=True, generic=True)


def verify_roundtrip(module: ir.Module) -> None:
    """Print and parse a verified module as text, generic text and bytecode. Raises DiagnosedError
    on a difference."""
    expected = _STYLE.text(module.operation, verified=True)
    forms: dict[str, str | bytes] = {
        "text": PrintStyle(debug_info=True).text(module.operation, verified=True),
        "generic text": expected,
        "bytecode": module_bytecode(module),
    }
    for name, data in forms.items():
        with native_errors_raised(module.context, also=ValueError):
            reparsed = ir.Module.parse(data, module.context)
        if _STYLE.text(reparsed.operation, verified=True) != expected:
            raise DiagnosedError(
                Diagnostic("error", f"the module changes when it is written and read as {name}")
            )
