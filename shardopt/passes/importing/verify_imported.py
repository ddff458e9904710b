"""Check that a module has the imported form, the contract between import and every later phase.

Needs: the import passes. Holds afterwards: what `dialect/imported_form.py` says; the module is
unchanged. The first departure is the error, and its notes name up to four others."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from jaxlib.mlir import ir

from shardopt.forms.imported_form import violations
from shardopt.passes.base import Pass, PassContext

# One cause (a missed inlining, a symbolic dimension) often repeats on thousands of operations.
_MAX_REPORTED = 5


@dataclass(frozen=True)
class VerifyImported(Pass):
    name = "shardopt-verify-imported"
    summary = "check that the module is one function of StableHLO operations on static shapes"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        reported = list(islice(violations(module), _MAX_REPORTED))
        if reported:
            first, *others = reported
            raise pm.error(first.op, first.message, [(other.op, other.message) for other in others])
