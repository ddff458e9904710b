"""Which operations of a stage run together: the fragments that `shardopt.passes.stages.staging`
will outline.

Outside the loop: what needs nothing of other stages' results there, then the rest. Inside: forward,
then backward (`shardopt.solve.stages.body.backward`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shardopt.graph.op_graph import SHARED
from shardopt.solve.stages.body.backward import backward_rows
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
    backward = {op for row in backward_rows(step.body, start, end, turn) for op in step.units[row]}
    body = [op for op in inside if begin <= op < stop]
    parts: list[tuple[Kind, list[int]]] = [
        *(("before", ops) for ops in _outside_loop(step, [op for op in inside if op < begin], 0)),
        ("forward", [op for op in body if op not in backward]),
        ("backward", [op for op in body if op in backward]),
        *(("after", ops) for ops in _outside_loop(step, [op for op in inside if op >= stop], stop)),
    ]
    return tuple(Fragment(kind, tuple(ops)) for kind, ops in parts if ops)


def _outside_loop(step: StepGraph, ops: Sequence[int], first: int) -> tuple[list[int], list[int]]:
    """Operations around the loop that wait for nothing that other layers make there, and those that
    do; `first` is the first operation of that part of the step."""
    members, waits = set(ops), set[int]()
    # In program order, so whoever a member waits for has been looked at before it.
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
