"""Manual regions in the words of those who run them.

For GSPMD a region is no operation: its code stands between the custom calls that begin and end code
for one device, and every operation of it says so.

    %m = custom_call @SPMDFullToShardShape(%a) {mhlo.sharding = "{manual}"}
    %1 = stablehlo.tanh %m                      {mhlo.sharding = "{manual}"}
    %2 = custom_call @SPMDShardToFullShape(%1) {mhlo.sharding = "{devices=[2,1]<=[2]}"}

In a program for one device it is its own code, with replicas in the place of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxlib.mlir import ir

from shardopt.dialect.manual import MANUAL, read_region
from shardopt.dialect.sharding import MHLO_SHARDING, to_mhlo
from shardopt.forms.manual_code import BEGIN, END, MANUAL_SHARDING
from shardopt.forms.sharded_form import regions_of
from shardopt.ir.rewriting import identity, operations, splice_block
from shardopt.mesh.mesh import Mesh

# What tells collectives between partitions from those between replicas.
_OF_PARTITIONS = ("channel_handle", "use_global_device_ids")


def expand_for_gspmd(main: ir.Operation, mesh: Mesh) -> None:
    """Put the code of all regions into `main`, behind the annotations of everything else."""
    for op in operations(main, (MANUAL,)):
        region = read_region(op).on(mesh)
        assert region is not None  # checked when its shardings were chosen
        block = op.regions[0].blocks[0]
        types = [argument.type for argument in block.arguments]
        with ir.InsertionPoint(op), op.location:
            whole = [
                _said(identity(value, op.location, ir.InsertionPoint(op)), to_mhlo(sharding, mesh))
                for value, sharding in zip(op.operands, region.operands, strict=True)
            ]
            tiles = [
                _call(BEGIN, value, type_, MANUAL_SHARDING)
                for value, type_ in zip(whole, types, strict=True)
            ]
            body, end = splice_block(block, tiles, op)
            _mark(body)
            for result, value, sharding in zip(
                op.results, end.operands, region.results, strict=True
            ):
                tile = _call("Sharding", value, value.type, MANUAL_SHARDING)
                full = _call(END, tile, result.type, to_mhlo(sharding, mesh))
                result.replace_all_uses_with(full)
        op.erase()


def inline_for_device(op: ir.Operation, tiles: Sequence[ir.Value]) -> list[ir.Value]:
    """The code of a region on these tiles, at the current insertion point, and its results."""
    copy = op.clone(ip=ir.InsertionPoint.current)
    body, end = splice_block(copy.regions[0].blocks[0], tiles, copy)
    results = list(end.operands)
    copy.erase()
    for inner in [each for outer in body for each in operations(outer)]:
        for name in _OF_PARTITIONS:
            if name in inner.attributes:
                del inner.attributes[name]
        if inner.name == "stablehlo.partition_id":
            number = ir.Operation.create(
                "stablehlo.replica_id",
                [inner.results[0].type],
                loc=inner.location,
                ip=ir.InsertionPoint(inner),
            ).results[0]
            results = [number if value == inner.results[0] else value for value in results]
            inner.results[0].replace_all_uses_with(number)
            inner.erase()
    return results


def _call(target: str, value: ir.Value, type_: ir.Type, sharding: str) -> ir.Value:
    attributes: dict[str, ir.Attribute] = {"call_target_name": ir.StringAttr.get(target)}
    return _said(
        ir.Operation.create("stablehlo.custom_call", [type_], [value], attributes), sharding
    )


def _said(op: ir.Operation, sharding: str) -> ir.Value:
    op.attributes[MHLO_SHARDING] = ir.StringAttr.get(sharding)
    return op.results[0]


def _mark(ops: Iterable[ir.Operation]) -> None:
    for op in ops:
        for block in regions_of(op):
            _mark(view.operation for view in block.operations)
        if len(op.results):
            texts = [MANUAL_SHARDING] * len(op.results)
            text = texts[0] if len(texts) == 1 else "{" + ", ".join(texts) + "}"
            op.attributes[MHLO_SHARDING] = ir.StringAttr.get(text)
