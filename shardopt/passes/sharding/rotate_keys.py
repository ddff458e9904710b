"""Attention over a ring of devices, where the method asks for it (`intra-op=ring`).

    %s = dot_general %q, %k                     %o = sdy.manual_computation(%q, %k, %v) … {
    %p = softmax of %s             =>             while … { a block of scores, and sums of it
    %o = dot_general %p, %v                                 collective_permute of %k and %v } }

Each device keeps its queries, and keys and values go round (Liu et al., arXiv 2310.01889): never
more than one block of scores is there. Backward the same, with the gradients of keys and values
going round as well.

1. Find attention and where the sequence flows through it (`shardopt.solve.presets.sequence_flow`).
2. Find out how many turns it takes (`shardopt.solve.presets.ring_passes`): forward one, and
   backward two, as the sum over a row of the gradient of the scores has to be known first.
3. Write each turn as a manual region for the whole mesh (`rotation`): from there on it is a fixed
   island, as one that `jax.shard_map` wrote. What is left of attention is erased.

Attention that cannot be taken apart is refused, at the operation at which recognition ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.dialect.cluster import cluster_of
from shardopt.extract.batch_arguments import UndecidedBatch, parse_batch_arguments
from shardopt.extract.chosen_plan import main_of
from shardopt.extract.mesh_graphs import MeshGraph, is_staged, read_plain
from shardopt.extract.op_graph import reads, sharding_rules
from shardopt.ir.rewriting import defining, erase_dead
from shardopt.mesh.mesh import parse_mesh
from shardopt.mesh.shardings import live_axes
from shardopt.options.names import MeshIntraOp
from shardopt.passes.base import Pass, PassContext, option, plan_option
from shardopt.passes.microbatches.find_batch import find_batch
from shardopt.passes.sharding.decide.input_kinds import find_input_kinds
from shardopt.passes.sharding.rotation.block_writer import Unsplittable
from shardopt.passes.sharding.rotation.layout import RingLayout
from shardopt.passes.sharding.rotation.ring_writer import RingWriter
from shardopt.solve.presets.context import ContextParallel, context_plan
from shardopt.solve.presets.ring_passes import Ended, RingAnalysis, RingPass
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.support.errors import UserError

_ENDED = "expected attention that a ring can compute; recognition ended here, as {}"


@dataclass(frozen=True)
class RotateKeys(Pass):
    """See the head of the file."""

    name = "shardopt-rotate-keys"
    summary = "let keys and values go round a ring of devices, if the method is one"

    cluster: str = plan_option(
        "cluster", help="cluster file or preset; default: the cluster the stage phase planned for"
    )
    intra_op: MeshIntraOp = plan_option(
        "intra_op", default="auto", help="how shardings are chosen; only ring rotates keys"
    )
    mesh: str = option("", help="shape of the mesh for a module without stages, such as 2x2")
    batch_args: tuple[str, ...] = plan_option("batch_args", default=("auto",))

    def __post_init__(self) -> None:
        parse_batch_arguments(self.batch_args)

    def run(self, module: ir.Module, pm: PassContext) -> None:
        if not self.intra_op.startswith("ring"):
            pm.preserve()
            return
        main = main_of(module)
        if is_staged(main) or not self.mesh:
            raise pm.error(main, f"expected intra-op={self.intra_op} with a mesh and no stages")
        try:
            graph = self._read(module, main)
            plan = self._plan(module, graph)
        except (UserError, ValueError) as error:
            raise pm.error(main, str(error)) from error
        places = list(dict.fromkeys(plan.sequence.attention.values()))
        analyses = [RingAnalysis(graph.graph, place) for place in places]
        turns = 0
        for analysis in analyses:
            turns += _rotate(graph, analysis, RingLayout(plan, analysis.place), pm)
        _erase(graph, analyses)
        pm.statistic("turns", turns)

    def _read(self, module: ir.Module, main: ir.Operation) -> MeshGraph:
        with sharding_rules(module):
            graph = read_plain(main, parse_mesh(self.mesh))
        if self.batch_args == ("auto",):
            try:
                graph.batch = {each.index: each.dim for each in find_batch(module).all}
            except UndecidedBatch as error:
                graph.no_batch = error.reason
        return graph

    def _plan(self, module: ir.Module, graph: MeshGraph) -> ContextParallel:
        cluster = cluster_of(module, self.cluster, "")
        tables = IntraOpTables(graph.graph, graph.mesh, cluster)
        kinds = find_input_kinds(self.intra_op, graph, tables, self.batch_args)
        return context_plan(self.intra_op, False, tables, kinds, live_axes(graph.mesh))


def _rotate(graph: MeshGraph, analysis: RingAnalysis, layout: RingLayout, pm: PassContext) -> int:
    """Rewrite one place of attention; the number of turns."""
    handles = graph.reader.handles
    _check_extents(graph, analysis, layout, pm)
    turns = analysis.run()
    if isinstance(turns, Ended):
        raise pm.error(handles[turns.op], _ENDED.format(turns.reason))
    try:
        for turn in turns:
            _write(graph, RingWriter(graph.reader, analysis, layout, turn), turn)
    except Unsplittable as error:
        reason = "it cannot be computed block by block"
        raise pm.error(handles[error.op], _ENDED.format(reason)) from error
    [first, *_] = [handles[each.op] for turn in turns for each in turn.sums]
    pm.remark("ring-attention", first, f"keys go round in {len(turns)} turns", category="passed")
    return len(turns)


def _check_extents(
    graph: MeshGraph, analysis: RingAnalysis, layout: RingLayout, pm: PassContext
) -> None:
    first = analysis.place.first
    assert first is not None
    index = graph.graph.producers()[first.op.results[0]]
    for role in ("rows", "keys"):
        factor = analysis.place.factor(index, role)
        extent = 0 if factor is None else first.sizes[factor]
        if not extent or extent % layout.size:
            axis = layout.plan.axis
            raise pm.error(
                graph.reader.handles[index],
                f"expected {role} of attention that {axis}={layout.size} divides, found {extent}",
            )


def _write(graph: MeshGraph, writer: RingWriter, turn: RingPass) -> None:
    """A turn in the place of the first operation that it computes."""
    handles, index = graph.reader.handles, graph.reader.index
    anchor, *others = (handles[each.op] for each in turn.sums)
    for other in others:
        anchor = other if other.is_before_in_block(anchor) else anchor
    region = writer.write(anchor)
    _hoist(region)
    for each, result in zip(turn.sums, region.results, strict=True):
        [old] = handles[each.op].results
        index[result] = index.pop(old)
        old.replace_all_uses_with(result)


def _hoist(region: ir.Operation) -> None:
    """Move what an operation reads, where it stands behind it, before it."""
    pending = [region]
    while pending:
        op = pending.pop()
        for value in reads(op):
            maker = defining(value)
            if maker is not None and op.is_before_in_block(maker):
                maker.move_before(op)
                pending.append(maker)


def _erase(graph: MeshGraph, analyses: Sequence[RingAnalysis]) -> None:
    """What the regions have replaced, and what only that has read."""
    handles = graph.reader.handles
    ops = {op for each in analyses for op in each.ops}
    makers, read = graph.graph.producers(), list[ir.Value]()
    for index in sorted(ops, reverse=True):
        handle = handles[index]
        if any(True for result in handle.results for _ in result.uses):
            continue
        pairs = zip(handle.operands, graph.graph.ops[index].operands, strict=True)
        read += [value for value, tensor in pairs if makers[tensor] not in ops]
        handle.erase()
    erase_dead(read)
