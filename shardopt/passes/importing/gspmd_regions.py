"""Code for one device in GSPMD's words, as `jax.shard_map` writes it without Shardy, as regions.

    %0 = custom_call @Sharding(%x)              {mhlo.sharding = "{devices=[2,2]<=[4]}"}
    %1 = custom_call @SPMDFullToShardShape(%0)  {mhlo.sharding = "{manual}"}
    %2 = stablehlo.tanh %1
    %3 = custom_call @Sharding(%2)              {mhlo.sharding = "{manual}"}
    %4 = custom_call @SPMDShardToFullShape(%3)  {mhlo.sharding = "{devices=[2,2]<=[4]}"}
 =>
    %4 = sdy.manual_computation(%x) in_shardings=[<mesh<["a0"=2, "a1"=2]>, [{"a0"}, {"a1"}]>] … {
      %2 = stablehlo.tanh %1; sdy.return %2 }

1. What an end is computed from, back to where code for one device begins, is its region. Ends with
   operations in common, and no beginning between them, share one.
2. The mesh is the coarsest one whose axes can say all shardings of the region.
3. Along axes that are not manual (`last_tile_dims={manual, replicated}`) code is computed in full,
   as in a region of Shardy; what it says of shardings along them is dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shardopt.dialect.manual import ManualRegion, create_region
from shardopt.dialect.sharding import MHLO_SHARDING
from shardopt.extract.op_graph import reads
from shardopt.forms.manual_code import BEGIN, END
from shardopt.ir.rewriting import defining, operations
from shardopt.mesh.mesh import Sharding
from shardopt.passes.base import PassContext
from shardopt.passes.importing.device_order import MeshOfTiles, Tiles, read_tiles

_CALL, _MARKER = "stablehlo.custom_call", "Sharding"


def regions_from_gspmd(root: ir.Operation, pm: PassContext) -> int:
    """Rewrites `root` in place; how many regions there are. Raises PassFailure for code that reads
    values of the program around it, and for shardings that no mesh can say."""
    ends = [op for op in operations(root, (_CALL,)) if _target(op) == END]
    groups: list[_Code] = []
    for end in ends:
        code = _Code.behind(end, pm)
        if groups and groups[-1].shares(code):
            groups[-1].join(code)
        else:
            groups.append(code)
    for code in groups:
        _Writer(code, pm).write()
    return len(groups)


@dataclass
class _Code:
    """`ops`, in no order, lie between `begins` and `ends`."""

    begins: dict[ir.Operation, None]
    ends: list[ir.Operation]
    ops: dict[ir.Operation, None] = field(default_factory=dict)

    @classmethod
    def behind(cls, end: ir.Operation, pm: PassContext) -> _Code:
        code = cls({}, [end])
        pending = list(end.operands)
        while pending:
            value = pending.pop()
            op = defining(value)
            if op is None or op.parent != end.parent or op.block != end.block:
                raise pm.error(
                    end,
                    f"expected code that begins at @{BEGIN}, found one that reads another value",
                )
            if _target(op) == BEGIN:
                code.begins.setdefault(op)
            elif op not in code.ops:
                code.ops[op] = None
                pending += reads(op)
        return code

    def shares(self, later: _Code) -> bool:
        """Whether the code of a later end is part of this region: it does anything that this one
        does, which is all there from where this ends."""
        if not any(len(op.operands) for op in self.ops if op in later.ops):
            return False
        return all(
            begin in self.begins or _is_before(begin, self.ends[0]) for begin in later.begins
        )

    def join(self, later: _Code) -> None:
        self.begins |= later.begins
        self.ends += later.ends
        self.ops |= later.ops


def _is_before(op: ir.Operation, other: ir.Operation) -> bool:
    return op.block == other.block and op.is_before_in_block(other)


@dataclass
class _Writer:
    code: _Code
    pm: PassContext

    def write(self) -> None:
        ends = self.code.ends
        begins = [view.operation for view in ends[0].block.operations]
        begins = [op for op in begins if op in self.code.begins]  # in their order
        sources = [self._source(begin) for begin in begins]
        tiles_in = [self._tiles(source) for source in sources]
        tiles_out = [self._tiles(end) for end in ends]
        manual = [self._tiles(op) for op in begins or [_before(end) for end in ends]]
        try:
            mesh = MeshOfTiles.of([*tiles_in, *tiles_out, *manual], self._groups())
        except ValueError as error:
            raise self.pm.error(ends[0], f"code for one device: {error}") from None
        axes = tuple(dict.fromkeys(axis for each in manual for axis in mesh.manual(each)))
        region = ManualRegion(
            mesh.axes,
            tuple(name for name, _ in mesh.axes if name in axes),
            tuple(_along(mesh.sharding(each), axes) for each in tiles_in),
            tuple(_along(mesh.sharding(each), axes) for each in tiles_out),
        )
        self._build(region, begins, sources)

    def _groups(self) -> Iterator[np.ndarray]:
        for op in self.code.ops:
            for inner in operations(op):
                groups = inner.attributes.get("replica_groups", None)
                if isinstance(groups, ir.DenseElementsAttr):
                    yield np.array(groups)

    def _source(self, begin: ir.Operation) -> ir.Operation:
        """The marker that says how the operand lies."""
        marker = defining(begin.operands[0])
        if marker is None or _target(marker) != _MARKER:
            raise self.pm.error(
                begin, f"expected @{_MARKER} in front of @{BEGIN}, which says how its operand lies"
            )
        return marker

    def _tiles(self, op: ir.Operation) -> Tiles:
        text = op.attributes.get(MHLO_SHARDING, None)
        if not isinstance(text, ir.StringAttr):
            raise self.pm.error(op, f"expected '{MHLO_SHARDING}' on @{_target(op)}, found none")
        try:
            return read_tiles(text.value, ir.RankedTensorType(op.results[0].type).rank)
        except ValueError as error:
            raise self.pm.error(op, f"sharding of @{_target(op)}: {error}") from None

    def _build(
        self, region: ManualRegion, begins: Sequence[ir.Operation], sources: Sequence[ir.Operation]
    ) -> None:
        ends = self.code.ends
        with ir.InsertionPoint(ends[0]), ends[0].location:
            op = create_region(
                region,
                [source.operands[0] for source in sources],
                [end.results[0].type for end in ends],
            )
        block = op.regions[0].blocks.append(
            *(begin.results[0].type for begin in begins),
            arg_locs=[begin.location for begin in begins],
        )
        with ir.InsertionPoint(block), op.location:
            end_op = sdy.ReturnOp([end.operands[0] for end in ends]).operation
        originals = [view.operation for view in ends[0].block.operations]
        originals = [each for each in originals if each in self.code.ops]
        values = dict(zip((begin.results[0] for begin in begins), block.arguments, strict=True))
        copies = [each.clone(ip=ir.InsertionPoint(end_op)) for each in originals]
        for original, copy in zip(originals, copies, strict=True):
            values |= dict(zip(original.results, copy.results, strict=True))
        for copy in [*copies, end_op]:
            _rename(copy, values)
        for end, result in zip(ends, op.results, strict=True):
            end.results[0].replace_all_uses_with(result)
            end.erase()
        for copy in copies:
            _forget_shardings(copy)
        # What is read beyond the region, too, stays: constants, or what is refused later.
        _erase_unread([*reversed(originals), *begins, *sources])


def _rename(op: ir.Operation, values: Mapping[ir.Value, ir.Value]) -> None:
    for inner in operations(op):
        for position, operand in enumerate(list(inner.operands)):
            if operand in values:
                inner.operands[position] = values[operand]


def _forget_shardings(op: ir.Operation) -> None:
    for inner in operations(op):
        if _target(inner) == _MARKER:
            inner.results[0].replace_all_uses_with(inner.operands[0])
            inner.erase()
        elif MHLO_SHARDING in inner.attributes:
            del inner.attributes[MHLO_SHARDING]


def _erase_unread(ops: Sequence[ir.Operation]) -> None:
    for op in dict.fromkeys(ops):
        if not any(list(result.uses) for result in op.results):
            op.erase()


def _along(sharding: Sharding, axes: Sequence[str]) -> Sharding:
    return Sharding(tuple(tuple(axis for axis in dim if axis in axes) for dim in sharding.dims))


def _before(end: ir.Operation) -> ir.Operation:
    made = defining(end.operands[0])
    assert made is not None  # all of the code was found from here
    return made


def _target(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["call_target_name"]).value if op.name == _CALL else ""
