"""The batch arguments of a step: as the user names them, or as the rows of its arguments tell
(`shardopt.solve.microbatches.batch_search`). Later passes read what is decided from marks
(`shardopt.dialect.batch`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from jaxlib.mlir import ir

from shardopt.dialect.batch import has_step_loop, write_batch, write_no_batch
from shardopt.dialect.manual import MANUAL, read_region
from shardopt.extract.batch_arguments import (
    BatchArgument,
    UndecidedBatch,
    argument_name,
    brought,
    called,
    check_extent,
    is_key,
    named_batch,
)
from shardopt.extract.chosen_plan import main_of
from shardopt.extract.control_flow import RegionReader
from shardopt.extract.op_graph import identity_rule, sharding_rules
from shardopt.extract.segments import with_segments
from shardopt.extract.step_state import argument_trees, replaced_arguments
from shardopt.graph.op_graph import Op, OpGraph
from shardopt.ir.rewriting import terminator
from shardopt.solve.microbatches.batch_search import BatchSearch, Family, StepInputs, search_batch
from shardopt.solve.microbatches.row_flow import FedBack, follow_rows

# At most this many arguments are listed in an error.
_MAX_LISTED = 8


# Of a step that goes over parts of its batch, and is no loop over microbatches.
PARTS_ADVICE = (
    "take parts of the batch along a dimension behind its rows (reshape it to rows x parts, and "
    "take [:, part])"
)


@dataclass(frozen=True)
class FoundBatch:
    """Arguments that the caller brings in each step, and state that has the same rows, such as
    caches."""

    inputs: tuple[BatchArgument, ...]
    state: tuple[BatchArgument, ...] = ()

    @property
    def all(self) -> tuple[BatchArgument, ...]:
        return tuple(sorted((*self.inputs, *self.state), key=lambda batch: batch.index))

    def describe(self, main: ir.Operation) -> str:
        """The remark that says what was decided."""
        inputs, state = (_placed(main, part) for part in (self.inputs, self.state))
        if not inputs:
            return f"the batch is carried in the state: {state}"
        return f"the batch is {inputs}" + (f"; state has it too: {state}" if state else "")


def choose_batch(module: ir.Module, texts: Sequence[str], count: int) -> FoundBatch:
    """The batch arguments of `@main` in the imported form, named or with `auto` found. None for
    `none`.

    Raises UndecidedBatch, DiagnosedError for what does not exist or cannot be cut into `count`
    blocks, ValueError for malformed items."""
    main = main_of(module)
    is_auto = tuple(texts) == ("auto",)
    batch = find_batch(module) if is_auto else FoundBatch(named_batch(main, texts))
    check_batch(main, batch, count)
    return batch


def check_batch(main: ir.Operation, batch: FoundBatch, count: int) -> None:
    """Raises IndivisibleBatch unless all of it can be cut into `count` blocks."""
    for each in batch.all:
        check_extent(main, each, count)


def find_batch(module: ir.Module) -> FoundBatch:
    """Raises UndecidedBatch, which lists the candidates with what speaks against each."""
    main = main_of(module)
    graph, arguments, fed_back = _read_rows(module, main)
    tensors = tuple(graph.tensors[argument] for argument in arguments)
    trees, replaced = argument_trees(main), replaced_arguments(main)
    keys = frozenset(k for k, tensor in enumerate(tensors) if is_key(tensor))
    step = StepInputs(arguments, graph.outputs, replaced, keys, trees, fed_back)
    search = search_batch(graph, step)
    if not search.batch:
        raise UndecidedBatch.because(main, _undecided(main, search), _advice(main, search))
    batch = [BatchArgument(rows.number, rows.dim, rows.parts) for rows in search.batch]
    return FoundBatch(
        tuple(each for each in batch if each.index not in replaced),
        tuple(each for each in batch if each.index in replaced),
    )


def in_parts(module: ir.Module, batch: FoundBatch) -> FoundBatch | None:
    """The same arguments with as many parts as the step takes them in; None where it takes them as
    they are."""
    graph, arguments, fed_back = _read_rows(module, main_of(module))
    flow = follow_rows(graph, arguments, fed_back)
    parts = {(flow.rows[k].number, flow.rows[k].dim): count for k, count in flow.parts.items()}

    def parted(each: BatchArgument) -> BatchArgument:
        count = parts.get((each.index, each.dim), 1)
        extent = graph.tensors[arguments[each.index]].shape[each.dim]
        return each if extent % count else replace(each, parts=count)

    found = FoundBatch(tuple(map(parted, batch.inputs)), tuple(map(parted, batch.state)))
    return None if found == batch else found


def _read_rows(
    module: ir.Module, main: ir.Operation
) -> tuple[OpGraph, tuple[int, ...], tuple[FedBack, ...]]:
    """The graph that rows are followed in, its tensors of the arguments, and what its loops hand
    on."""
    reader, block = _RowReader(), main.regions[0].blocks[0]
    arguments = tuple(map(reader.tensor, block.arguments))
    *ops, end = (op.operation for op in block.operations)
    # Rows are followed through factors, which the sharding rules name.
    with sharding_rules(module):
        reader.add_ops(ops)
    return reader.graph(map(reader.tensor, end.operands)), arguments, tuple(reader.fed_back)


class _RowReader(RegionReader):
    """Reads the code of manual regions instead of the regions, with the rows of one device."""

    def add_op(self, op: ir.Operation, group: int, repeat: int) -> None:
        if op.name != MANUAL:
            before = len(self.ops)
            super().add_op(op, group, repeat)
            # A loop is the operations in it, and a barrier none.
            if self.handles[before:] == [op]:
                self.ops[-1] = with_segments(self.ops[-1], op)
            return
        block = op.regions[0].blocks[0]
        for operand, argument in zip(op.operands, block.arguments, strict=True):
            self._hand_on(op, operand, argument, argument)
        devices = prod(size for _, size in read_region(op).axes)
        self._add_block(block, group, repeat * devices)
        for value, result in zip(terminator(block).operands, op.results, strict=True):
            self._hand_on(op, value, result, value)

    def _hand_on(
        self, op: ir.Operation, source: ir.Value, target: ir.Value, tile: ir.Value
    ) -> None:
        """Between a value and the `tile` of it that a device has."""
        before, after = self.tensor(source), self.tensor(target)
        rule = identity_rule(self.tensors[self.tensor(tile)].shape)
        self.handles.append(op)
        self.ops.append(Op("tile", (before,), (after,), rule))


def mark_batch(main: ir.Operation, batch: FoundBatch) -> None:
    """Tell later passes."""
    write_batch(main, {each.index: each.dim for each in batch.all})


def mark_undecided(main: ir.Operation, error: UndecidedBatch) -> None:
    """Tell later passes why there is no batch."""
    write_no_batch(main, error.reason)


def _undecided(main: ir.Operation, search: BatchSearch) -> str:
    names = main.regions[0].blocks[0].arguments
    against = _objections(search)
    numbers = [number for number in brought(main) if number in against] or brought(main)
    listed = [
        f"{k}: {argument_name(names[k])} {names[k].type}".replace("  ", " ")
        + (f", {against[k]}" if k in against else "")
        for k in numbers
    ]
    more = len(listed) - _MAX_LISTED
    tail = f"; and {more} more" if more > 0 else ""
    why = (
        "several arguments could be it"
        if search.disputed
        else "no argument has rows that run through the step one by one"
    )
    candidates = "; ".join(listed[:_MAX_LISTED]) + tail
    return f"cannot tell the batch arguments: {why}" + (f" ({candidates})" if listed else "")


def _advice(main: ir.Operation, search: BatchSearch) -> str:
    advice = (
        "name them with batch-args=INDEX[:DIM] or NAME[:DIM], or keep the batch whole with "
        "num-microbatches=1"
    )
    has_parts = any(family.parted and family.inputs for family in search.families)
    return f"{PARTS_ADVICE}, {advice}" if has_parts and not has_step_loop(main) else advice


def _objections(search: BatchSearch) -> Mapping[int, str]:
    """What speaks against the first dimension of each argument, if it has more than one row."""
    families = {rows: family for family in search.families for rows in family.inputs}
    return {
        rows.number: f"{family.extent} rows" if family in search.disputed else _objection(family)
        for rows, family in families.items()
        if rows.dim == 0
    }


def _objection(family: Family) -> str:
    if family.looked_up:
        return "whose rows are picked by an index"
    if family.parted:
        return "which the step takes in parts, as microbatches of its own"
    if family.mixed:
        return "whose rows are mixed"
    if not family.agreed:
        return "whose rows some results have and others sum up"
    if not family.whole_trees:
        return "in a tree of which the most has no such rows"
    if family.share < 1:
        return "along which little of the work is done"
    return "which results do not have"


def _placed(main: ir.Operation, batch: Sequence[BatchArgument]) -> str:
    return ", ".join(
        f"dimension {each.dim} of {called(main, each.index)}"
        + (f" in each of {each.parts} parts" if each.parts > 1 else "")
        for each in batch
    )
