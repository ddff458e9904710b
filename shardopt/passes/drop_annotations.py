"""Remove sharding annotations of the user, which the planner does not take as constraints.

Runs at the head of the import phase. Afterwards the module has no `sdy.mesh`, no `sdy.sharding_constraint`, no
`custom_call @Sharding`, and no `sdy.sharding` or `mhlo.sharding` attribute: planning starts from the mathematics alone.
A warning says how many annotations were dropped; with remarks on, each is named.

    %1 = sdy.sharding_constraint %0 <@mesh, [{"dp"}, {}]> : tensor<8x4xf32>
    %2 = stablehlo.add %1, %1 : tensor<8x4xf32>                     =>  %2 = stablehlo.add %0, %0 : tensor<8x4xf32>
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.attributes import entries
from shardopt.ir.rewriting import functions, operations
from shardopt.passes.base import Pass, PassContext

_ATTRIBUTES = ("sdy.sharding", "mhlo.sharding")


def _is_identity(op: ir.Operation) -> bool:
    """Ops that only carry a sharding and hand their operand on."""
    if op.name == "sdy.sharding_constraint":
        return True
    return op.name == "stablehlo.custom_call" and ir.StringAttr(op.attributes["call_target_name"]).value == "Sharding"


def _drop_attributes(op: ir.Operation) -> int:
    found = [name for name in _ATTRIBUTES if name in op.attributes]
    for name in found:
        del op.attributes[name]
    return len(found)


def _drop_signature(function: ir.Operation) -> int:
    """Shardings of arguments and results of a function."""
    dropped = 0
    for which in ("arg_attrs", "res_attrs"):
        if which not in function.attributes:
            continue
        rows = [ir.DictAttr(row) for row in ir.ArrayAttr(function.attributes[which])]
        kept = [{name: value for name, value in entries(row).items() if name not in _ATTRIBUTES} for row in rows]
        dropped += sum(len(row) - len(rest) for row, rest in zip(rows, kept, strict=True))
        function.attributes[which] = ir.ArrayAttr.get([ir.DictAttr.get(row) for row in kept])
    return dropped


@dataclass(frozen=True)
class DropAnnotations(Pass):
    """See the head of the file."""

    name = "shardopt-drop-annotations"
    summary = "remove the user's sharding annotations, with a warning"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        dropped = sum(_drop_signature(function) for function in functions(module))
        for op in operations(module.operation):
            dropped += _drop_attributes(op)
            if _is_identity(op):
                pm.remark("dropped-annotation", op, f"'{op.name}' is dropped")
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()
                dropped += 1
        for op in [op.operation for op in module.body.operations if op.operation.name == "sdy.mesh"]:
            op.erase()
        if dropped:
            pm.warning(module.operation, f"{dropped} sharding annotations of the model are dropped, not obeyed")
        pm.statistic("annotations dropped", dropped)
