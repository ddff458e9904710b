"""Where `{manual}` may stand in a plain module in GSPMD's form: on code for one device, which
begins and ends at custom calls, and nowhere else.

    %m = custom_call @SPMDFullToShardShape(%a)  {mhlo.sharding = "{manual}"}
    %1 = stablehlo.tanh %m                      {mhlo.sharding = "{manual}"}
    %2 = custom_call @SPMDShardToFullShape(%1)  {mhlo.sharding = "{devices=[2,1]<=[2]}"}
"""

from __future__ import annotations

from jaxlib.mlir import ir

from shardopt.dialect.sharding import MHLO_SHARDING, split_tuple

MANUAL_SHARDING = "{manual}"  # code for one device
BEGIN, END = "SPMDFullToShardShape", "SPMDShardToFullShape"


def is_manual_or_border(op: ir.Operation) -> bool:
    """Whether `misplaced` may find anything in a module that has this operation."""
    return _is_manual(op) or (op.name == "stablehlo.custom_call" and _target(op) in (BEGIN, END))


def misplaced(op: ir.Operation) -> str:
    """What is wrong with the sharding of an operation that is, or reads, code for one device;
    nothing is "".

    What has no operands belongs to such code if all of its readers do."""
    says, target = _is_manual(op), _target(op)
    if target == BEGIN:
        return "" if says else f"expected '{MANUAL_SHARDING}' on @{BEGIN}, found another sharding"
    reads = [_is_manual(_maker(value)) for value in op.operands]
    if target == END:
        return "" if all(reads) else f"expected code for one device to end at @{END}, found none"
    if not reads and says:
        reads = [_belongs(use.owner.operation) for result in op.results for use in result.uses]
    if says and not all(reads):
        return f"expected '{MANUAL_SHARDING}' on code behind @{BEGIN} alone, found it elsewhere"
    if any(reads) and not says:
        return f"expected code for one device to end at @{END}, found a reader beyond it"
    return ""


def _belongs(op: ir.Operation) -> bool:
    """Whether a reader is such code; what ends a region of a loop or branch is as these are."""
    holder = op if len(op.results) or op.parent is None else op.parent.operation
    return _target(op) == END or _is_manual(holder)


def _maker(value: ir.Value) -> ir.Operation:
    """The operation that makes a value, or whose region has it as an argument."""
    owner = value.owner
    return owner.owner.operation if isinstance(owner, ir.Block) else owner.operation


def _is_manual(op: ir.Operation) -> bool:
    if MHLO_SHARDING not in op.attributes:
        return False
    text = ir.StringAttr(op.attributes[MHLO_SHARDING]).value
    return MANUAL_SHARDING in text and MANUAL_SHARDING in split_tuple(text)


def _target(op: ir.Operation) -> str:
    name = "call_target_name"
    return ir.StringAttr(op.attributes[name]).value if name in op.attributes else ""
