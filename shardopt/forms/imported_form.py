"""What a module looks like after import: one public `@main` of StableHLO operations on tensors of
static shape.

All later phases read operations of `@main` in program order and their shapes; nothing in the
program may be hidden behind a call, decided by the shape of the input, or already be written for
one device of a mesh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.dialect.donation import donation_faults
from shardopt.dialect.manual import MANUAL, is_inside, mesh_names
from shardopt.ir.rewriting import functions, operations, symbol_name

MAIN = "main"


class Violation(NamedTuple):
    """One departure from the form: the operation and what was expected of it."""

    op: ir.Operation
    message: str


# Operations of other dialects that may stay: the frame, and what users say about shardings.
_ALLOWED = frozenset(
    {
        "builtin.module",
        "func.func",
        "func.return",
        "sdy.manual_computation",
        "sdy.mesh",
        "sdy.propagation_barrier",
        "sdy.sharding_constraint",
        "sdy.sharding_group",
    }
)

_CALLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}

# Code for one device of a mesh: its meaning depends on a placement that is not decided yet.
_PER_DEVICE = frozenset(
    {
        "stablehlo.all_gather",
        "stablehlo.all_reduce",
        "stablehlo.all_to_all",
        "stablehlo.collective_broadcast",
        "stablehlo.collective_permute",
        "stablehlo.partition_id",
        "stablehlo.recv",
        "stablehlo.reduce_scatter",
        "stablehlo.replica_id",
        "stablehlo.send",
    }
)
_PER_DEVICE_TARGETS = frozenset({"SPMDFullToShardShape", "SPMDShardToFullShape"})

# Operations whose result shape is an operand.
_DYNAMIC = frozenset(
    {
        "stablehlo.dynamic_broadcast_in_dim",
        "stablehlo.dynamic_conv",
        "stablehlo.dynamic_gather",
        "stablehlo.dynamic_iota",
        "stablehlo.dynamic_pad",
        "stablehlo.dynamic_reshape",
        "stablehlo.real_dynamic_slice",
        "stablehlo.set_dimension_size",
    }
)


def violations(module: ir.Module) -> Iterator[Violation]:
    """All departures from the imported form: those of the functions, then those of the operations
    in program order."""
    yield from _of_functions(module)
    for op in operations(module.operation, outer_first=True):
        message = ("" if _is_manual(op) else _of_name(op)) or _of_types(op)
        if message:
            yield Violation(op, message)


def _is_manual(op: ir.Operation) -> bool:
    """Whether an operation is written for one device, within a region that says how it lies."""
    return op.name in (*_PER_DEVICE, "sdy.return") and is_inside(op)


def _of_functions(module: ir.Module) -> Iterator[Violation]:
    names = {symbol_name(function): function for function in functions(module)}
    if MAIN not in names:
        yield Violation(module.operation, f"expected a function '@{MAIN}', found {_listed(names)}")
    for name, function in names.items():
        if name != MAIN:
            yield Violation(
                function, f"expected '@{MAIN}' to be the only function, found '@{name}'"
            )
        elif "sym_visibility" in function.attributes:
            visibility = ir.StringAttr(function.attributes["sym_visibility"]).value
            if visibility != "public":
                yield Violation(function, f"expected '@{MAIN}' to be public, found it {visibility}")
        yield from (Violation(function, fault) for fault in donation_faults(function))
        blocks = len(function.regions[0].blocks)
        if blocks != 1:
            yield Violation(function, f"expected '@{name}' to have one block, found {blocks}")


def _listed(names: dict[str, ir.Operation]) -> str:
    return ", ".join(f"'@{name}'" for name in names) or "no function"


def _of_name(op: ir.Operation) -> str:
    name = op.name
    if name in _CALLS:
        callee = ir.FlatSymbolRefAttr(op.attributes[_CALLS[name]]).value
        return f"expected no calls, found '{name}' of '@{callee}'; run shardopt-inline-calls first"
    if name == MANUAL and any(str(each).startswith("@") for each in mesh_names(op)):
        return (
            f"expected the mesh of '{MANUAL}' in its attributes, found its name; run "
            "shardopt-read-manual-regions first"
        )
    if name in _PER_DEVICE:
        return (
            f"expected a program for all devices, found '{name}', which is code for one "
            "device of a mesh"
        )
    if name == "stablehlo.custom_call":
        target = ir.StringAttr(op.attributes["call_target_name"]).value
        if target in _PER_DEVICE_TARGETS:
            return (
                f"expected a program for all devices, found '@{target}', which begins or ends "
                "code for one device"
            )
    if name in _DYNAMIC:
        return f"expected static shapes, found '{name}', whose result shape is computed"
    if not name.startswith("stablehlo.") and name not in _ALLOWED:
        return f"expected StableHLO operations only, found '{name}'"
    return ""


def _of_types(op: ir.Operation) -> str:
    """Results and block arguments; every operand is one of those."""
    for result in op.results:
        if not _is_plain(result.type):
            return f"expected results of static shape, found {result.type} from '{op.name}'"
    for region in op.regions:
        for block in region.blocks:
            for argument in block.arguments:
                if not _is_plain(argument.type):
                    return (
                        f"expected arguments of static shape, found {argument.type} in '{op.name}'"
                    )
    return ""


def _is_plain(type_: ir.Type) -> bool:
    if isinstance(type_, ir.RankedTensorType):
        return type_.has_static_shape
    return stablehlo.TokenType.isinstance(type_)
