"""Which operations of a stage run together: the fragments that `shardopt.passes.stages.staging`
will outline.

Around the loop: what needs nothing of other stages' results there, then the rest. Inside: forward,
then backward. An operation is backward when it depends on layers behind the stage, and also when
only the backward reads it, from values that are kept for that backward anyway: then there is less
to keep."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Literal

from shardopt.graph.op_graph import SHARED
from shardopt.solve.stages.step_graph import StepGraph

Kind = Literal["before", "forward", "backward", "after"]


@dataclass(frozen=True)
class Fragment:
    """Operations of a step graph in program order; copies of shared operations among them are not
    listed."""

    kind: Kind
    ops: tuple[int, ...]


def fragments(step: StepGraph, start: int, end: int, turn: int) -> tuple[Fragment, ...]:
    """The fragments of layers [start, end), in the order in which they run; empty ones are left
    out. The backward is what depends on layers from `turn` on: those behind the stage."""
    inside = sorted(op for layer in range(start, end) for op in step.ops_of_layer.get(layer, ()))
    begin, stop = step.loop
    body = _kinds(step, [op for op in inside if begin <= op < stop], turn)
    parts: list[tuple[Kind, list[int]]] = [
        *(("before", ops) for ops in _outside_loop(step, [op for op in inside if op < begin], 0)),
        ("forward", [op for op, kind in body.items() if kind == "forward"]),
        ("backward", [op for op, kind in body.items() if kind == "backward"]),
        *(("after", ops) for ops in _outside_loop(step, [op for op in inside if op >= stop], stop)),
    ]
    return tuple(Fragment(kind, tuple(ops)) for kind, ops in parts if ops)


def _outside_loop(step: StepGraph, ops: Sequence[int], first: int) -> tuple[list[int], list[int]]:
    """Operations around the loop that wait for nothing that other layers make there, and those that
    do; `first` is the first operation of that part of the step."""
    members, waits = set(ops), set[int]()
    for op in ops:
        makers = (_maker(step, tensor, first) for tensor in step.graph.ops[op].operands)
        if any(maker is not None and (maker not in members or maker in waits) for maker in makers):
            waits.add(op)
    return [op for op in ops if op not in waits], [op for op in ops if op in waits]


def _maker(step: StepGraph, tensor: int, first: int) -> int | None:
    """The operation of some layer, on the same side of the loop, that makes a tensor."""
    producer = step.producers[tensor]
    same_side = producer >= first and not step.in_body(producer)
    return producer if same_side and step.op_layer[producer] != SHARED else None


def _kinds(step: StepGraph, ops: Sequence[int], turn: int) -> dict[int, Kind]:
    kinds: dict[int, Kind] = {
        op: "backward" if step.reached[op] >= turn else "forward" for op in ops
    }
    if "backward" in kinds.values():
        _postpone(step, kinds)
    return kinds


def _postpone(step: StepGraph, kinds: dict[int, Kind]) -> None:
    """Turn forward into backward where only the backward reads the results and all that is read is
    kept for it."""
    returned = {after for _, after in step.carried}
    kept = {
        t for op, kind in kinds.items() if kind == "backward" for t in step.graph.ops[op].operands
    }
    for unit in reversed(step.units_of(kinds)):
        if kinds[unit[0]] != "forward":
            continue
        results = {result for op in unit for result in step.graph.ops[op].results}
        users = {user for result in results for user in step.consumers[result]} - set(unit)
        behind = all(kinds.get(user) == "backward" for user in users)
        if not users or not behind or results & returned:
            continue
        read = {t for op in unit for t in step.graph.ops[op].operands} - results
        of_layers = {tensor for tensor in read if not step.is_shared(tensor)}
        if all(tensor in kept or _is_from_outside(step, tensor, returned) for tensor in of_layers):
            kinds.update((op, "backward") for op in unit)
            kept |= of_layers


def _is_from_outside(step: StepGraph, tensor: int, returned: Set[int]) -> bool:
    """Whether the body gets the tensor from outside."""
    return tensor not in returned and not step.in_body(step.producers[tensor])
