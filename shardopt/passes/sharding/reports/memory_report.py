"""What the sharding pass says about memory: what is recomputed, and why a budget is too
small."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxlib.mlir import ir

from shardopt.extract.mesh_graphs import MeshGraph
from shardopt.graph.op_graph import OpGraph
from shardopt.passes.base import PassContext, PassFailure
from shardopt.solve.sharding.budget.search import Fit
from shardopt.solve.sharding.intra_op.finished import Account, account
from shardopt.solve.sharding.intra_op.plan import IntraOpPlan
from shardopt.solve.sharding.intra_op.problem import IntraOpProblem
from shardopt.solve.sharding.intra_op.sharded_ops import local_bytes
from shardopt.support.sizes import format_bytes

# Tensors named in the error about a budget that is too small.
_MOST_HOLDERS = 5


def report_rematerialized(graph: MeshGraph, plan: IntraOpPlan, pm: PassContext) -> None:
    """A remark for each value that is recomputed, and their number, bytes and seconds as
    statistics."""
    if not plan.rematerialized:
        return
    total_bytes = total_seconds = 0.0
    for remat in plan.rematerialized:
        size = local_bytes(plan.graph, plan.mesh, remat.tensor, plan.shardings[remat.tensor])
        seconds = remat.seconds * plan.graph.ops[remat.chain[-1]].repeat
        total_bytes, total_seconds = total_bytes + size, total_seconds + seconds
        message = (
            f"recomputed for {len(remat.readers)} of its readers by {len(remat.chain)} operations: "
            f"saves {format_bytes(size)} a device in between, takes {seconds:.3g} s"
        )
        pm.remark(
            "rematerialized", graph.reader.handles[remat.chain[-1]], message, category="passed"
        )
    mesh = graph.mesh.name
    pm.statistic(f"{mesh}: rematerialized values", len(plan.rematerialized))
    pm.statistic(f"{mesh}: rematerialized bytes", int(total_bytes))
    pm.statistic(f"{mesh}: rematerialization seconds", total_seconds)


def too_small(
    graph: MeshGraph, problem: IntraOpProblem, fit: Fit, limit: int, pm: PassContext
) -> PassFailure:
    """The error: how much is missing, where the smallest peak lies and what it consists of, which
    budget works."""
    least = fit.least
    if least is None or least.plan is None:
        message = (
            f"no sharding found on mesh {graph.mesh}: "
            f"{fit.solution.statistics.get('reason', 'memory')}"
        )
        return pm.error(graph.fragments[0], message)
    counted = account(problem, least.plan)
    at = int(counted.live_bytes.argmax())
    op = counted.home[counted.order[at]]
    proven = least.bound_bytes > limit
    missing = (
        f"at least {least.bound_bytes - limit} bytes too few"
        if proven
        else "not proven to be impossible"
    )
    exact = least.bound_bytes == least.peak_bytes
    smallest = "and none below does" if exact else f"none below {least.bound_bytes} bytes can"
    message = (
        f"mesh '{graph.mesh.name}' does not fit into {format_bytes(limit)} a device ({missing}); "
        f"the smallest budget found to work is {format_bytes(least.peak_bytes)}, {smallest}"
    )
    held = "; ".join(_holders(graph, counted, at))
    note = (
        f"the smallest peak is reached at '{least.plan.graph.ops[op].name}', where a "
        f"device holds {held}"
    )
    notes: list[tuple[ir.Operation, str]] = [(graph.reader.handles[op], note)]
    constraints = problem.tables.constraints
    if constrained := len(constraints.allowed) + len(constraints.forbidden):
        notes.append(
            (
                graph.fragments[0],
                f"the user constrains {constrained} of the values and operations of this mesh",
            )
        )
    return pm.error(graph.reader.handles[op], message, notes=notes)


def _holders(graph: MeshGraph, counted: Account, at: int) -> Iterator[str]:
    """The largest of what is held at a position, and how much more there is."""
    sharded, shardings = counted.sharded, counted.sharded.shardings
    ops, mesh = sharded.graph, sharded.mesh
    held = [
        (
            live.count * local_bytes(ops, mesh, live.tensor, shardings[live.tensor]),
            live.tensor,
            f"{shardings[live.tensor]}"
            + (f" for {live.count} microbatches" if live.count > 1 else ""),
        )
        for live in counted.lives
        if (span := live.span(shardings.__getitem__))[0] <= at < span[1]
    ]
    held += [
        (copy.bytes, copy.tensor, f"copied as {copy.sharding}" if copy.sharding else "on the way")
        for copy in counted.copies
        if copy.start <= at < copy.stop
    ]
    held.sort(key=lambda item: (-item[0], item[1]))
    for size, tensor, how in held[:_MOST_HOLDERS]:
        shape = "x".join(map(str, (*ops.tensors[tensor].shape, ops.tensors[tensor].dtype)))
        yield f"{size} bytes of {_origin(graph, ops, tensor)} (tensor<{shape}>, {how})"
    if rest := held[_MOST_HOLDERS:]:
        yield f"{int(np.sum([size for size, *_ in rest]))} bytes in {len(rest)} others"


def _origin(graph: MeshGraph, ops: OpGraph, tensor: int) -> str:
    maker = ops.producers()[tensor]
    if maker < 0:
        number = next(
            (number for number, argument in graph.arguments.items() if argument == tensor), None
        )
        return "a value from another mesh" if number is None else f"argument {number}"
    return f"'{ops.ops[maker].name}'"
