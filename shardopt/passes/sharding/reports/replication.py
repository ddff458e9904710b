"""Remarks on what the plan of a mesh could not split, and on what it had to guess."""

from __future__ import annotations

from jaxlib.mlir import ir

from shardopt.extract.call_rules import call_limits
from shardopt.extract.mesh_graphs import MeshGraph
from shardopt.ir.diagnostics import shown_name
from shardopt.ir.loops import UNKNOWN_TRIPS
from shardopt.mesh.splits import may_split
from shardopt.passes.base import PassContext
from shardopt.solve.sharding.strategies.factors import uneven_factor, why_opaque

# Where the work is: a dimension that does not divide is worth a word only there.
_HEAVY = frozenset({"dot_general", "convolution"})


def report_replicated(graph: MeshGraph, pm: PassContext) -> None:
    """One remark for each kind of operation that runs replicated, for each extent that does not
    divide, and for each loop of unknown length, at the first of the kind."""
    _report_opaque(graph, pm)
    _report_uneven(graph, pm)
    for loop in graph.reader.guessed:
        message = (
            "a loop whose number of iterations depends on data is planned as if it ran "
            f"{UNKNOWN_TRIPS} times"
        )
        pm.remark("unknown-trip-count", loop, message)


def _report_opaque(graph: MeshGraph, pm: PassContext) -> None:
    opaque: dict[tuple[str, str], list[ir.Operation]] = {}
    limited: dict[tuple[str, str], list[ir.Operation]] = {}
    for op, handle in zip(graph.reader.ops, graph.reader.handles, strict=True):
        why, limits = why_opaque(op), call_limits(handle)
        if why:
            opaque.setdefault((shown_name(handle), limits or why), []).append(handle)
        elif limits:
            limited.setdefault((shown_name(handle), limits), []).append(handle)
    for (kind, why), handles in opaque.items():
        message = f"{kind} cannot be partitioned and runs replicated{_many(handles)}: {why}"
        pm.remark("no-sharding-rule", handles[0], message)
    for (kind, why), handles in limited.items():
        message = f"{kind} is not split as others are{_many(handles)}: {why}"
        pm.remark("no-sharding-rule", handles[0], message)


def _report_uneven(graph: MeshGraph, pm: PassContext) -> None:
    uneven: dict[tuple[int, str], list[ir.Operation]] = {}
    for op, handle in zip(graph.reader.ops, graph.reader.handles, strict=True):
        extent = uneven_factor(op, graph.mesh) if op.name in _HEAVY else 0
        for axis, size in graph.mesh.axes if extent else ():
            if not may_split(extent, size):
                uneven.setdefault((extent, axis), []).append(handle)
    for (extent, axis), handles in uneven.items():
        size = graph.mesh.axis_size(axis)
        message = (
            f"the largest dimension, of extent {extent}, is not split along axis '{axis}' of size "
            f"{size}: too much would be padding{_many(handles)}"
        )
        pm.remark("uneven-dimension", handles[0], message)


def _many(handles: list[ir.Operation]) -> str:
    return f" ({len(handles)} operations)" if len(handles) > 1 else ""
