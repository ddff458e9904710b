"""The program of one device, operation by operation.

Every value of the planned program becomes the tile of a device. An operation runs on its tiles
(`local_ops`); where that leaves terms of its result, an all-reduce follows, or a reduce-scatter
where the only reader is the part that each device keeps. A marker, which is where a value changes
its sharding, becomes the collectives of the chain (`reshard`). What cannot run on tiles runs whole:
its operands are gathered, and every device keeps its tile of the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jaxlib.mlir import ir

from shardopt.dialect.annotation import is_marker
from shardopt.dialect.manual import MANUAL
from shardopt.extract.op_graph import read_reducer, reads
from shardopt.extract.windows import read_windows
from shardopt.graph.op_graph import FactorRule
from shardopt.ir.loops import CONTROL_FLOW
from shardopt.ir.rewriting import BARRIER, shape_of, terminator
from shardopt.mesh.mesh import Sharding
from shardopt.passes.sharding.apply.manual_regions import inline_for_device
from shardopt.passes.sharding.partition.builder import DeviceBuilder
from shardopt.passes.sharding.partition.local_ops import (
    LocalOp,
    build_local,
    clone_with,
    local_type,
)
from shardopt.passes.sharding.partition.reshard import Change, reshard
from shardopt.passes.sharding.partition.splits import CannotSplit, read_split


@dataclass(eq=False)
class Partitioner:
    """`lies` are the shardings of the values of the whole program, `rules` those of its
    operations, by their first results. Afterwards `whole` lists the operations that no device could
    run on tiles, and why."""

    builder: DeviceBuilder
    lies: Mapping[ir.Value, Sharding]
    rules: Mapping[ir.Value, FactorRule | None]
    tiles: dict[ir.Value, ir.Value] = field(default_factory=dict)
    # How the tiles lie; a sum that its only reader takes is still open.
    held: dict[ir.Value, Sharding] = field(default_factory=dict)
    # How devices combine what they hold of a value with open sums.
    reducers: dict[ir.Value, str] = field(default_factory=dict)
    whole: list[tuple[ir.Operation, str]] = field(default_factory=list)
    before_barriers: dict[ir.Value, ir.Value] = field(default_factory=dict)
    # What has been moved in this block: (tile, from, to).
    copies: dict[tuple[ir.Value, Sharding, Sharding], ir.Value] = field(default_factory=dict)

    def enter(self, old: ir.Block, new: ir.Block) -> None:
        """The arguments of `new` are the tiles of those of `old`."""
        self.tiles.update(zip(old.arguments, new.arguments, strict=True))

    def add_block(self, old: ir.Block, new: ir.Block) -> None:
        """All operations of `old` but the last, at the end of `new`."""
        *body, _ = (view.operation for view in old.operations)
        outer, self.copies = self.copies, {}
        with ir.InsertionPoint(new):
            for op in body:
                with op.location:
                    self._add(op)
        self.copies = outer

    def tile(self, value: ir.Value, sharding: Sharding | None = None) -> ir.Value:
        """The tile of a value, as it lies or in another sharding."""
        held = self.held.get(value, self.lies[value])
        if sharding is None or held == sharding:
            return self.tiles[value]
        change = Change(shape_of(value), held, sharding, self.reducers.get(value, "add"))
        return reshard(self.builder, self.tiles[value], change)

    def _add(self, op: ir.Operation) -> None:
        if op.name in CONTROL_FLOW:
            self._add_regions(op)
        elif is_marker(op):
            self._add_marker(op.operands[0], op.results[0])
        elif op.name == MANUAL:
            made = inline_for_device(op, [self.tiles[value] for value in op.operands])
            self.tiles.update(zip(op.results, made, strict=True))
        elif op.name == BARRIER:
            new = clone_with(op, [self.tiles[value] for value in op.operands])
            for result, operand in zip(new.results, new.operands, strict=True):
                result.set_type(operand.type)
                self.before_barriers[result] = self.before_barriers.get(operand, operand)
            self.tiles.update(zip(op.results, new.results, strict=True))
        else:
            self._add_operation(op)

    def _add_marker(self, value: ir.Value, result: ir.Value) -> None:
        """What lies behind a barrier is the same tensor to the planner: it is moved once."""
        held, sharding = self.held.get(value, self.lies[value]), self.lies[result]
        source = self.before_barriers.get(self.tiles[value], self.tiles[value])
        key = source, held, sharding
        if held == sharding or key not in self.copies:
            self.copies[key] = self.tile(value, sharding)
        self.tiles[result] = self.copies[key]

    def _add_regions(self, op: ir.Operation) -> None:
        types = [local_type(self.builder, r.type, self.lies[r]) for r in op.results]
        operands = [self.tiles[value] for value in op.operands]
        new = ir.Operation.create(op.name, types, operands, regions=len(op.regions))
        for old_region, new_region in zip(op.regions, new.regions, strict=True):
            old = old_region.blocks[0]
            arguments = [local_type(self.builder, a.type, self.lies[a]) for a in old.arguments]
            block = new_region.blocks.append(*arguments)
            self.enter(old, block)
            self.add_block(old, block)
            end = terminator(old)
            with ir.InsertionPoint(block), end.location:
                ir.Operation.create(end.name, [], [self.tiles[value] for value in end.operands])
        self.tiles.update(zip(op.results, new.results, strict=True))

    def _add_operation(self, op: ir.Operation) -> None:
        try:
            made, shardings = self._on_tiles(op)
        except CannotSplit as error:
            self.whole.append((op, str(error)))
            made, shardings = self._on_whole(op)
        reducer = read_reducer(op) or "add"
        for result, value, held in zip(op.results, made, shardings, strict=True):
            self.tiles[result], self.held[result] = value, held
            self.reducers[result] = reducer
            if not self._is_taken_later(result, held):
                self.tiles[result] = self.tile(result, self.lies[result])
                self.held[result] = self.lies[result]

    def _on_tiles(self, op: ir.Operation) -> tuple[list[ir.Value], list[Sharding]]:
        rule, values = self.rules.get(op.results[0]), reads(op)
        operands = tuple(self.lies[value] for value in values)
        results = tuple(self.lies[result] for result in op.results)
        taken = {axis for sharding in results for axis in sharding.axes}
        if any(taken & set(sharding.unreduced) for sharding in operands):
            # A clone for a reader may be split along an axis along which its operand has terms.
            operands = tuple(sharding.reduced() for sharding in operands)
        split = read_split(rule, operands, results, self.builder.mesh)
        need = rule.need_replication if rule is not None else frozenset()
        if need & split.axes.keys():
            raise CannotSplit("a dimension that it needs whole is split")
        unreduced = tuple(
            axis
            for axis in self.builder.mesh.axis_names
            if axis in split.reduced or axis in split.terms
        )
        # Constants of zeros are terms of any sum.
        shardings = [
            replace(sharding, unreduced=unreduced or sharding.unreduced) for sharding in results
        ]
        if split.reduced and len(results) != 1:
            raise CannotSplit("several results are reduced at once")
        if not op.operands and not split.axes:
            shardings = list(results)
        tiles = tuple(
            self.tile(value, sharding) for value, sharding in zip(values, operands, strict=True)
        )
        windows = read_windows(op, rule)
        local = LocalOp(op, tiles, operands, tuple(shardings), split, rule, windows)
        return build_local(self.builder, local), shardings

    def _on_whole(self, op: ir.Operation) -> tuple[list[ir.Value], list[Sharding]]:
        if any(self.lies[result].unreduced for result in op.results):
            raise ValueError(f"'{op.name}' cannot run whole where its result is a term of a sum")
        values = reads(op)
        whole = [self.tile(value, Sharding.replicated(len(shape_of(value)))) for value in values]
        new = clone_with(op, whole)
        shardings = [Sharding.replicated(len(shape_of(result))) for result in op.results]
        return list(new.results), shardings

    def _reducer(self, op: ir.Operation) -> str:
        return read_reducer(op) or "add"

    def _is_taken_later(self, result: ir.Value, held: Sharding) -> bool:
        """Whether the only reader keeps a part that is scattered along just the axes of the sum."""
        uses = list(result.uses)
        if len(uses) != 1 or self.lies[result].unreduced or not held.unreduced:
            return False
        reader = uses[0].owner.operation
        if not is_marker(reader):
            return False
        kept = self.lies[reader.results[0]]
        grown = [
            new[len(old) :]
            for old, new in zip(held.dims, kept.dims, strict=True)
            if new[: len(old)] == old and new != old
        ]
        same = sum(old == new for old, new in zip(held.dims, kept.dims, strict=True))
        return (
            len(grown) == 1
            and same == held.rank - 1
            and set(grown[0]) == set(held.unreduced)
            and not kept.unreduced
        )
