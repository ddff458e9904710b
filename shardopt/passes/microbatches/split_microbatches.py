"""Cut a training step into prologue, microbatch loop and epilogue, from the graph alone.

Needs: one `@main` of StableHLO (import phase). Holds afterwards: `@main` calls `@microbatch` in a
rolled `mpmd.for`; what a contraction over the batch sums is accumulated by the loop, and its users
stand behind it; what the epilogue or a result reads of a batched value is collected block by block.
Loops, branches and manual regions that carry the batch have the rows of a microbatch inside.

    func @main(%w, %x: 8x4) {            func @main(%w, %x: 8x4) {
      %h = dot %x, %w                      %b = reshape %x : 2x4x4
      // contracts the batch               %g = mpmd.for (%zero) {iterations = 2} (%acc, %i) {
      %g = dot %h, %x                =>      %n = mpmd.call @microbatch(%w, %b, %acc, %i)
      %u = subtract %w, %g                   mpmd.return %n }
      return %u }                          %u = subtract %w, %g ; return %u }

1. Find the batch arguments: named by the user, or from where rows go
   (`shardopt.passes.microbatches.find_batch`), and mark them (`shardopt.batch`).
2. Propagate the batch through the sharding rules (`shardopt.solve.microbatches.time_axis`), and
   through loops and branches (`shardopt.solve.microbatches.region_axis`) and code for one device
   (`shardopt.solve.microbatches.island_axis`).
3. Place the ops on demand (`shardopt.solve.microbatches.time_plan`).
4. Where rows wait for a number of the whole batch that they only hand on, as the gradient of the
   root of a mean does, leave it out of the loop (`shardopt.solve.microbatches.factors`) and begin
   again.
5. Write the loop (`shardopt.passes.microbatches.microbatch_loop`).

A single microbatch adds to nothing: what it makes replaces what the loop begins with. Of several,
sums of numbers of 16 or 8 bits are kept in f32, and rounded once, behind the loop.

A loop in which the step accumulates gradients over parts of its batch by itself is the microbatch
loop already: it is taken as it is (`shardopt.passes.microbatches.adopt_loop`), for as many
microbatches as it has iterations.

One microbatch needs no batch: with `batch-args=none`, or where none is found, all of the step but
the updates of its state is the body of a loop of one iteration, whose results replace the
accumulators."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxlib.mlir import ir

from shardopt.dialect.batch import with_step_loop, write_batch
from shardopt.extract.accumulation import (
    PRODUCTS,
    Accumulation,
    NoAccumulation,
    find_accumulation,
    origins,
)
from shardopt.extract.batch_arguments import (
    IndivisibleBatch,
    UndecidedBatch,
    brought,
    parse_batch_arguments,
)
from shardopt.extract.call_rules import call_limits
from shardopt.extract.op_graph import sharding_rules
from shardopt.forms.microbatched_form import MICROBATCH
from shardopt.graph.microbatching import Split, TimePlan
from shardopt.graph.op_graph import OpGraph
from shardopt.ir.diagnostics import shown_name
from shardopt.ir.loops import CONTROL_FLOW
from shardopt.ir.rewriting import functions, operations, shape_of, symbol_name
from shardopt.options.names import BatchCoupling, MicrobatchSums
from shardopt.passes.base import Pass, PassContext, PassFailure, plan_option
from shardopt.passes.importing.branches import RUN_ONCE
from shardopt.passes.microbatches.adopt_loop import LoopAdopter
from shardopt.passes.microbatches.find_batch import (
    PARTS_ADVICE,
    FoundBatch,
    check_batch,
    choose_batch,
    in_parts,
    mark_batch,
    mark_undecided,
)
from shardopt.passes.microbatches.leave_out_factor import leave_out_factor
from shardopt.passes.microbatches.microbatch_loop import LoopWriter, StepReader
from shardopt.passes.microbatches.split_conditional import split_conditional
from shardopt.solve.microbatches.axis import (
    Batch,
    BranchSums,
    CouplingError,
    Mixing,
    TimeAxis,
)
from shardopt.solve.microbatches.factors import find_factor
from shardopt.solve.microbatches.time_plan import plan_loop
from shardopt.solve.microbatches.whole_step import plan_single

_OPAQUE = (*PRODUCTS, "stablehlo.custom_call")
# What to do instead.
_ADVICE = {
    Mixing.PAIRS: "compare rows of groups, along a dimension of their own (reshape the batch to "
    "groups x rows), or keep the batch whole with num-microbatches=1",
    Mixing.MOVES: f"{PARTS_ADVICE}, sort and route within each row (jax.vmap), or keep the batch "
    "whole with num-microbatches=1",
    Mixing.DECIDES: "let each row end by itself (lax.while_loop of one row, under jax.vmap), or "
    "keep the batch whole with num-microbatches=1",
    Mixing.OTHER: "num-microbatches=1 keeps the batch whole",
}
_LEFT_OUT = (
    "needs a number that is known when all rows are; the backward pass does without it, and what "
    "that accumulates is multiplied by it"
)
_WHOLE_STEP = "the loop has one iteration, of the whole step"


def _find_main(module: ir.Module, pm: PassContext) -> ir.Operation:
    by_name = {symbol_name(function): function for function in functions(module)}
    if "main" not in by_name:
        raise pm.error(module.operation, "expected a function @main, found none")
    if MICROBATCH in by_name:
        raise pm.error(
            by_name[MICROBATCH],
            f"expected a step without @{MICROBATCH}: it is cut into microbatches once",
        )
    return by_name["main"]


def _read_step(main: ir.Operation) -> tuple[StepReader, tuple[int, ...]]:
    """The reader, in which tensor k is argument k, and the tensors that `@main` returns."""
    reader = StepReader()
    block = main.regions[0].blocks[0]
    for argument in block.arguments:
        reader.tensor(argument)
    *ops, terminator = (op.operation for op in block.operations)
    reader.add_ops(ops)
    return reader, tuple(reader.tensor(value) for value in terminator.operands)


def _batch(main: ir.Operation, reader: StepReader, chosen: FoundBatch, count: int) -> Batch:
    """Weights are the floating arguments with dimensions: a random key or a scalar may enter
    full-batch arithmetic."""
    arguments = list(main.regions[0].blocks[0].arguments)
    splits = {
        each.index: Split(
            each.dim, each.parts, shape_of(arguments[each.index])[each.dim] // each.parts
        )
        for each in chosen.all
    }
    weights = frozenset(
        k
        for k, value in enumerate(arguments)
        if k not in splits
        and shape_of(value)
        and not isinstance(ir.RankedTensorType(value.type).element_type, ir.IntegerType)
    )
    cheap = frozenset(
        k
        for k, op in enumerate(reader.handles)
        if op.name in CONTROL_FLOW and not operations(op, _OPAQUE)
    )
    return Batch(count, splits, weights, reader.splats(), cheap=cheap)


def _explain(
    error: CouplingError, main: ir.Operation, reader: StepReader, pm: PassContext
) -> PassFailure:
    op = reader.handle(error.op, error.regions)
    message = f"cannot cut the step into microbatches: {shown_name(op)} {error}"
    if limits := call_limits(op):
        message += f": {limits}"
    if error.origin is None and error.reader is not None:
        user = reader.handles[error.reader]
        return pm.error(
            op,
            f"{message}, and {shown_name(user)} needs what it makes; {_ADVICE[error.mixing]}",
            [(user, "needed here")],
        )
    if error.origin is None:
        return pm.error(op, f"{message}; {_ADVICE[error.mixing]}")
    origin = reader.handle(error.origin, error.regions[: error.origin_depth])
    if error.mixing is not Mixing.OTHER:
        message = f"{message} by {shown_name(origin)}; {_ADVICE[error.mixing]}"
        return pm.error(op, with_step_loop(main, message), [(origin, "rows are mixed here")])
    advice = (
        "batch-coupling=per-microbatch lets each microbatch stand for the whole batch, "
        "num-microbatches=1 keeps it whole"
    )
    return pm.error(
        op,
        with_step_loop(main, f"{message} by {shown_name(origin)}; {advice}"),
        [(origin, "reduced over the batch here")],
    )


@dataclass(frozen=True)
class SplitMicrobatches(Pass):
    name = "shardopt-split-microbatches"
    summary = "cut a training step into prologue, microbatch loop and epilogue"

    num_microbatches: int = plan_option("microbatches")
    batch_args: tuple[str, ...] = plan_option("batch_args", default=("auto",))
    batch_coupling: BatchCoupling = plan_option("batch_coupling")
    microbatch_sums: MicrobatchSums = plan_option("microbatch_sums")

    def __post_init__(self) -> None:
        if self.num_microbatches < 1:
            raise ValueError(
                f"expected num-microbatches of at least 1, found {self.num_microbatches}"
            )
        if self.batch_args == ("none",) and self.num_microbatches > 1:
            raise ValueError(
                f"expected num-microbatches=1 with batch-args=none, found {self.num_microbatches}"
            )
        parse_batch_arguments(self.batch_args)

    def run(self, module: ir.Module, pm: PassContext) -> None:
        main = _find_main(module, pm)
        if self._adopt(module, main, pm):
            return
        batch = self._batch_of(module, main, pm)
        # The terminator alone.
        if len(main.regions[0].blocks[0].operations) == 1:
            raise pm.error(main, "expected a step that computes something, found no operation")
        reader, plan = self._read_and_plan(module, main, batch, pm)
        if not plan.accumulators:
            raise pm.error(main, "expected results that depend on the batch arguments, found none")
        pm.statistic("prologue ops", len(plan.prologue))
        pm.statistic("body ops", len(plan.body))
        pm.statistic("epilogue ops", len(plan.epilogue))
        pm.statistic("captured values", len(plan.captures) + len(plan.slices))
        pm.statistic("accumulators", len(plan.accumulators))
        LoopWriter(module, main, reader, plan, self.microbatch_sums == "f32").write()

    def _read_and_plan(
        self,
        module: ir.Module,
        main: ir.Operation,
        chosen: FoundBatch | None,
        pm: PassContext,
    ) -> tuple[StepReader, TimePlan]:
        while True:
            with sharding_rules(module):
                reader, outputs = _read_step(main)
            try:
                return reader, self._plan(main, reader, outputs, chosen, pm)
            except CouplingError as error:
                if error.sums is not None and _may_be_split(reader, error.sums):
                    # Neither is split again: one only yields sums, the other reads no rows.
                    _split_conditional(reader, error.sums)
                    continue
                if error.factor is not None:  # which leaves fewer operations that wait
                    leave_out_factor(reader, error.factor)
                    pm.remark("left-out-factor", reader.handle(error.op, error.regions), _LEFT_OUT)
                    continue
                chosen = self._in_parts(module, main, chosen)
                if chosen is None:
                    raise _explain(error, main, reader, pm) from None
                pm.remark("batch-arguments", main, chosen.describe(main), category="analysis")

    def _in_parts(
        self, module: ir.Module, main: ir.Operation, chosen: FoundBatch | None
    ) -> FoundBatch | None:
        """The batch in the parts that the step takes it in; None where there are no others than
        tried already, or they cannot be cut."""
        parts = None if chosen is None else in_parts(module, chosen)
        if parts is not None:
            try:
                check_batch(main, parts, self.num_microbatches)
            except IndivisibleBatch:
                return None
        return parts

    def _adopt(self, module: ir.Module, main: ir.Operation, pm: PassContext) -> bool:
        """Take the loop over parts of the batch that the step has itself, if it has one."""
        try:
            found = find_accumulation(main)
        except NoAccumulation as error:
            pm.remark("accumulation", error.at, str(error))
            return False
        if found is None:
            return False
        if self.num_microbatches not in (1, found.count):
            if not _takes_rows(main, found):
                return False
            raise pm.error(
                found.loop,
                f"the step accumulates over {found.count} parts of its batch itself, which are its "
                f"microbatches; expected num-microbatches={found.count} (or 1, which takes them "
                f"as well), found {self.num_microbatches}",
            )
        pm.remark(
            "accumulation",
            found.loop,
            f"the step accumulates over {found.count} parts of its batch itself: its loop is the "
            "microbatch loop",
        )
        adopter = LoopAdopter(module, main, found)
        batch = adopter.batch()
        adopter.write()
        write_batch(main, batch)
        pm.statistic("adopted loops", 1)
        return True

    def _batch_of(
        self, module: ir.Module, main: ir.Operation, pm: PassContext
    ) -> FoundBatch | None:
        """The batch, marked for later passes; none where one microbatch does without."""
        if self.batch_args == ("none",):
            return None
        try:
            batch = choose_batch(module, self.batch_args, self.num_microbatches)
        except UndecidedBatch as error:
            if self.num_microbatches > 1:
                raise
            mark_undecided(main, error)
            pm.remark("no-batch", main, f"{error.reason}; {_WHOLE_STEP}")
            return None
        mark_batch(main, batch)
        pm.remark("batch-arguments", main, batch.describe(main), category="analysis")
        return batch

    def _plan(
        self,
        main: ir.Operation,
        reader: StepReader,
        outputs: tuple[int, ...],
        chosen: FoundBatch | None,
        pm: PassContext,
    ) -> TimePlan:
        graph = reader.graph(outputs)
        if chosen is None or not chosen.all:
            return plan_single(graph)
        batch = _batch(main, reader, chosen, self.num_microbatches)
        plan = _plan_loop(graph, batch, self.batch_coupling, reader, pm)
        # Several microbatches with nothing to accumulate are an error, which `run` names.
        if plan.accumulators or self.num_microbatches > 1:
            return plan
        pm.remark("no-batch-structure", main, f"no result depends on the batch; {_WHOLE_STEP}")
        return plan_single(graph)


def _plan_loop(
    graph: OpGraph, batch: Batch, coupling: str, reader: StepReader, pm: PassContext
) -> TimePlan:
    """The exact plan if there is one; else, where that is allowed, one whose microbatches stand for
    the whole batch.

    The only microbatch *is* the whole batch, so a single one never fails: at worst the body is the
    whole step."""
    single = batch.num_microbatches == 1
    try:
        axis, plan = plan_loop(graph, batch)
        _remark_couplings(axis, reader, pm)
        if plan.accumulators:
            return plan
        # The step is cheap and reads no weights, so that all of it could stand outside of the loop.
        return plan_loop(graph, replace(batch, weights=batch.weights | frozenset(batch.splits)))[1]
    except CouplingError as error:
        is_split = error.sums is not None and _may_be_split(reader, error.sums)
        if not single and not is_split:
            error.factor = find_factor(graph, batch, error)
        if not single and (coupling == "error" or is_split or error.factor is not None):
            raise
    try:
        return plan_loop(graph, replace(batch, per_microbatch=True))[1]
    except CouplingError as error:
        if not single:
            raise
        op = reader.handle(error.op, error.regions)
        pm.remark(
            "no-batch-structure",
            op,
            f"{shown_name(op)} {error}; {_WHOLE_STEP}",
        )
        return plan_single(graph)


def _takes_rows(main: ir.Operation, found: Accumulation) -> bool:
    """Whether the parts are of what the caller brings: of each random key, or of each number, the
    loop takes the whole batch."""
    sliced = (found.loop.operands[position] for position, _ in found.slices.values())
    return any(origins(value) & set(brought(main)) for value in sliced)


def _may_be_split(reader: StepReader, sums: BranchSums) -> bool:
    return not operations(reader.handles[sums.op], RUN_ONCE)


def _split_conditional(reader: StepReader, sums: BranchSums) -> None:
    values = [
        [inside.values()[tensor] for tensor in tensors]
        for inside, tensors in zip(reader.inside[sums.op], sums.tensors, strict=True)
    ]
    split_conditional(reader.handles[sums.op], values)


def _remark_couplings(axis: TimeAxis, reader: StepReader, pm: PassContext) -> None:
    for index in axis.couplings:
        op = reader.handles[index]
        pm.remark(
            "full-batch-epilogue",
            op,
            f"{shown_name(op)} mixes rows of the batch; it runs on the whole batch",
        )
