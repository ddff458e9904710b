"""Which operations of a stage run together: the fragments that `shardopt.passes.stages.staging`
will outline.

Outside the loop: what needs nothing of other stages' results there, then the rest, each in pieces
where it reads state on the host. Inside: forward, then backward
(`shardopt.solve.stages.body.backward`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shardopt.graph.streamed_state import reads_with_copies, update_pieces
from shardopt.solve.stages.body.backward import backward_rows
from shardopt.solve.stages.step_graph import StepGraph

Kind = Literal["before", "forward", "backward", "after"]


@dataclass(frozen=True)
class Fragment:
    """Operations of a step graph in program order; copies of shared operations among them are not
    listed. `exports` are values of shared operations that it makes for other fragments, too.

    A fragment around the loop that `waits` reads what other layers make on its side of the loop."""

    kind: Kind
    ops: tuple[int, ...]
    exports: tuple[int, ...] = ()
    waits: bool = False


def fragments(step: StepGraph, start: int, end: int, turn: int) -> tuple[Fragment, ...]:
    """The fragments of layers [start, end), in the order in which they run; empty ones are left
    out. The backward is what depends on layers from `turn` on: those behind the stage."""
    inside = sorted(op for layer in range(start, end) for op in step.ops_of_layer.get(layer, ()))
    begin, stop = step.loop
    backward = {op for row in backward_rows(step.body, start, end, turn) for op in step.units[row]}
    body = [op for op in inside if begin <= op < stop]
    parts = (
        *_outside_loop(step, "before", [op for op in inside if op < begin], 0),
        Fragment("forward", tuple(op for op in body if op not in backward)),
        Fragment("backward", tuple(op for op in body if op in backward)),
        *_outside_loop(step, "after", [op for op in inside if op >= stop], stop),
    )
    pieces = (piece for part in parts if part.ops for piece in _pieces(step, part))
    return tuple(pieces)


def _pieces(step: StepGraph, part: Fragment) -> tuple[Fragment, ...]:
    """A fragment around the loop in parts that read little of what lies on the host."""
    if part.kind not in ("before", "after") or not step.on_host:
        return (part,)
    ops, resting = step.graph.ops, {t: step.graph.tensors[t].size_bytes for t in step.on_host}
    units = runs(part.ops, lambda op: bool(ops[op].block))

    def copied(tensor: int) -> tuple[int, ...]:
        maker = step.producers[tensor]
        is_copied = step.is_shared(tensor) and not step.in_body(maker)
        return ops[maker].operands if is_copied else ()

    reads = [
        reads_with_copies((t for op in unit for t in ops[op].operands), copied) for unit in units
    ]
    makes = [[t for op in unit for t in ops[op].results] for unit in units]
    of_piece: dict[int, list[int]] = {}
    for unit, number in zip(units, update_pieces(reads, makes, resting), strict=True):
        of_piece.setdefault(number, []).extend(unit)
    return tuple(replace(part, ops=tuple(of_piece[number])) for number in sorted(of_piece))


def runs(ops: Sequence[int], joined: Callable[[int], bool]) -> list[tuple[int, ...]]:
    """Neighbours that are all `joined` together, others alone."""
    units: list[tuple[int, ...]] = []
    for op in ops:
        if units and joined(op) and joined(units[-1][-1]):
            units[-1] = (*units[-1], op)
        else:
            units.append((op,))
    return units


def with_exports(
    step: StepGraph, parts: Sequence[Fragment], exports: Iterable[int]
) -> tuple[Fragment, ...]:
    """`parts` in which fragments before the loop make `exports`, values of shared operations there
    that the loop is given: made once, and not in every microbatch."""
    # The first piece of each makes them.
    before: dict[bool, list[Fragment]] = {}
    for part in parts:
        if part.kind == "before":
            before.setdefault(part.waits, []).append(part)
    ready = {op for part in before.get(False, ()) for op in part.ops}
    for tensor in exports:
        waits = not ready.issuperset(step.awaited((tensor,)))
        pieces = before.setdefault(waits, [Fragment("before", (), waits=waits)])
        pieces[0] = replace(pieces[0], exports=(*pieces[0].exports, tensor))
    around = (part for part in parts if part.kind != "before")
    return (*(piece for waits in sorted(before) for piece in before[waits]), *around)


def _outside_loop(
    step: StepGraph, kind: Kind, ops: Sequence[int], first: int
) -> tuple[Fragment, Fragment]:
    """Operations around the loop that wait for nothing that other layers make there, and those that
    do; `first` is the first operation of that part of the step. Where a sum of the loop is to be
    finished nothing is made: it is handed on as the loop leaves it."""
    members, waits = set(ops), set[int]()
    # In program order, so whoever a member waits for has been looked at before it.
    for op in ops:
        makers = step.awaited(step.graph.ops[op].operands)
        if any(
            maker not in members or maker in waits
            for maker in makers
            if maker >= first and not step.in_body(maker) and not step.is_sum_point(maker)
        ):
            waits.add(op)
    return (
        Fragment(kind, tuple(op for op in ops if op not in waits)),
        Fragment(kind, tuple(op for op in ops if op in waits), waits=True),
    )
