"""Replace every call by the body of its callee, so that one function holds the whole program.

Needs: nothing. Holds afterwards: no `func.call` and no `stablehlo.composite` in any function, also
not inside the regions of while, case or reduce; private functions that nothing refers to are gone.

    func.func public @main(%x) {                 func.func public @main(%x) {
      %y = call @relu(%x)                          %y = stablehlo.maximum %x, %zero
      return %y                             =>     return %y
    }                                            }
    func.func private @relu(%a) {…}

1. Sort the functions so that callees come first; a cycle is an error that names it.
2. In that order replace the calls of each function. Callees are flat by then, so a body is cloned
   once per call.
3. Shardings on the parameters and results of a callee become constraints on the values they spoke
   about.
4. Let symbol-dce remove what is no longer called.

Products of groups of rows (`chlo.ragged_dot`) are written out like any composite, with as many
products of all rows as there are groups, which a warning says.

MLIR's own `inline` pass leaves calls alone here, because the inliner interface of the func dialect
is not registered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import sdy, stablehlo

from shardopt.ir.rewriting import functions, operations, shape_of, splice_block, symbol_name
from shardopt.passes.base import Pass, PassContext

# What calls, and the attribute that names the callee.
_CALLEE = {"func.call": "callee", "stablehlo.composite": "decomposition"}

# Products of groups of rows (`jax.lax.ragged_dot`), for which GPUs and TPUs have kernels.
_GROUPS = "chlo.ragged_dot"

# Attributes of calls that mean nothing once the body stands in place of the call.
_CALL_ATTRIBUTES = frozenset(
    {
        "callee",
        "no_inline",
        "arg_attrs",
        "res_attrs",
        "decomposition",
        "name",
        "version",
        "composite_attributes",
    }
)


def _callee(call: ir.Operation) -> str:
    return ir.FlatSymbolRefAttr(call.attributes[_CALLEE[call.name]]).value


def _callees_first(
    calls: dict[str, list[ir.Operation]], bodies: dict[str, ir.Operation], pm: PassContext
) -> list[str]:
    graph = {name: dict.fromkeys(_callee(call) for call in sites) for name, sites in calls.items()}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        # graphlib lists the cycle against the direction of the calls
        cycle = list(reversed(error.args[1]))
        path = " -> ".join(f"@{name}" for name in cycle)
        raise pm.error(
            bodies[cycle[0]], f"expected no recursive calls, found the cycle {path}"
        ) from None


def _check_call(call: ir.Operation, bodies: dict[str, ir.Operation], pm: PassContext) -> None:
    name = _callee(call)
    callee = bodies.get(name)
    if callee is None:
        raise pm.error(call, f"call of '@{name}', which is not a function of this module")
    blocks = len(callee.regions[0].blocks)
    if blocks != 1:
        note = [(callee, f"'@{name}' is defined here")]
        raise pm.error(
            call, f"expected a callee of one block, found '@{name}' with {blocks} blocks", note
        )
    lost = sorted(
        str(attribute) for attribute in call.attributes if str(attribute) not in _CALL_ATTRIBUTES
    )
    if lost:
        pm.remark(
            "dropped-attribute", call, f"inlining @{name} drops {', '.join(lost)} of the call"
        )


def _warn_of_groups(calls: Sequence[ir.Operation], pm: PassContext) -> None:
    """Say what writing out costs where compilers have kernels for it."""
    groups = [
        call
        for call in calls
        if call.name == "stablehlo.composite"
        and ir.StringAttr(call.attributes["name"]).value == _GROUPS
    ]
    if groups:
        sizes = shape_of(groups[0].operands[-1])
        pm.warning(
            groups[0],
            f"'{_GROUPS}' is written out: all rows are multiplied once for each of "
            f"{sizes[-1] if sizes else 1} groups, where kernels for groups multiply each row once",
        )


def _constrained(value: ir.Value, attributes: ir.DictAttr) -> ir.Value:
    """`value` behind the sharding constraint that a parameter's or result's attributes express, if
    any."""
    if "sdy.sharding" in attributes:
        return sdy.ShardingConstraintOp(value, attributes["sdy.sharding"]).result
    if "mhlo.sharding" in attributes:
        call = stablehlo.CustomCallOp([value.type], [value], call_target_name="Sharding")
        call.operation.attributes["mhlo.sharding"] = attributes["mhlo.sharding"]
        return call.operation.result
    return value


def _constrained_all(
    values: Sequence[ir.Value], function: ir.Operation, attribute: str
) -> list[ir.Value]:
    if attribute not in function.attributes:
        return list(values)
    dictionaries = ir.ArrayAttr(function.attributes[attribute])
    return [
        _constrained(value, ir.DictAttr(entry))
        for value, entry in zip(values, dictionaries, strict=True)
    ]


def _inline(call: ir.Operation, callee: ir.Operation) -> None:
    copy = callee.clone(ip=False)
    with ir.InsertionPoint(call), call.location:
        arguments = _constrained_all(list(call.operands), callee, "arg_attrs")
        body, terminator = splice_block(copy.regions[0].blocks[0], arguments, call)
        results = _constrained_all(list(terminator.operands), callee, "res_attrs")
    for op in body:
        # Layers often call one callee: the location of the call tells their copies apart, which
        # plan files and constraints select by location.
        op.location = ir.Location.callsite(op.location, [call.location])
    for result, value in zip(call.results, results, strict=True):
        result.replace_all_uses_with(value)
    call.erase()
    copy.erase()


@dataclass(frozen=True)
class InlineCalls(Pass):
    name = "shardopt-inline-calls"
    summary = "replace every call and composite by the body of its callee"

    def run(self, module: ir.Module, pm: PassContext) -> None:
        bodies = {symbol_name(function): function for function in functions(module)}
        calls = {name: operations(body, _CALLEE) for name, body in bodies.items()}
        # First of all: the order below fails on callees that do not exist.
        for call in (call for sites in calls.values() for call in sites):
            _check_call(call, bodies, pm)
        _warn_of_groups([call for sites in calls.values() for call in sites], pm)
        for name in _callees_first(calls, bodies, pm):
            for call in calls[name]:
                _inline(call, bodies[_callee(call)])
        pm.statistic("calls", sum(map(len, calls.values())))
        # A native pass frees what it erases: no handle from above may be used behind it.
        passmanager.PassManager.parse("builtin.module(symbol-dce)", module.context).run(
            module.operation
        )
