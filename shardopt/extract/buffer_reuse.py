"""Which buffers a fragment can write its results into: those that it is the last to read.

Used when fragments become functions, which donate such arguments, and when the memory of a step is
predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from jaxlib.mlir import ir

from shardopt.dialect.donation import read_donation
from shardopt.dialect.mpmd import parse_mesh_tensor
from shardopt.dialect.program import StepProgram, body_of

_CALLS = ("mpmd.fragment", "mpmd.fragment_call")


def reused_buffers(
    program: StepProgram, block: ir.Block
) -> list[tuple[ir.Operation, dict[int, int]]]:
    """Each fragment of `@main` or of the body, with operand -> result that takes over its
    buffer."""
    return _reused(block, _owned(program, block))


def reused_in_function(function: ir.Operation) -> list[tuple[ir.Operation, dict[int, int]]]:
    """The same for a function that is no part of a step with microbatches.

    A transfer inside of a mesh may hand its buffer on: neither end of one is written over."""
    block = function.regions[0].blocks[0]
    owned: set[ir.Value] = {result for op in body_of(block) for result in op.results}
    owned |= {block.arguments[k] for k in read_donation(function)}
    for op in body_of(block):
        if op.name == "mpmd.transfer" and _mesh(op.operands[0]) == _mesh(op.results[0]):
            owned -= {op.operands[0], op.results[0]}
    return _reused(block, owned)


def _mesh(value: ir.Value) -> str:
    return parse_mesh_tensor(value.type).mesh


def _reused(block: ir.Block, owned: set[ir.Value]) -> list[tuple[ir.Operation, dict[int, int]]]:
    last_use = dict(_uses(block))
    fragments = [op for op in body_of(block) if op.name in _CALLS]
    return [(op, _taken_over(op, _dying_inputs(op, owned, last_use))) for op in fragments]


def _dying_inputs(
    fragment: ir.Operation, owned: set[ir.Value], last_use: dict[ir.Value, ir.Operation]
) -> list[int]:
    """Operands whose buffer nobody reads afterwards: owned by the step and used last, and once, by
    this fragment."""
    # What is passed twice cannot be donated: the other one would read what is written over it.
    operands = list(fragment.operands)
    times = Counter(operands)
    return [
        k
        for k, v in enumerate(operands)
        if v in owned and last_use.get(v) == fragment and times[v] == 1
    ]


def _taken_over(fragment: ir.Operation, dying: Sequence[int]) -> dict[int, int]:
    """input -> result of the same tensor type and sharding that takes over its buffer; each result
    once.

    Arguments of the function (accumulators, donated state) come first, so that what lives on stays
    in its buffer."""
    free = list(range(len(fragment.results)))
    reused = {}
    for k in sorted(dying, key=lambda k: not isinstance(fragment.operands[k], ir.BlockArgument)):
        match = next(
            (r for r in free if fragment.results[r].type == fragment.operands[k].type), None
        )
        if match is not None:
            free.remove(match)
            reused[k] = match
    return reused


def _uses(block: ir.Block) -> Iterator[tuple[ir.Value, ir.Operation]]:
    for op in block.operations:
        for value in op.operation.operands:
            yield value, op.operation
        if op.operation.name == "mpmd.for":
            for region in op.operation.regions:
                yield from (
                    (value, op.operation) for inner in region.blocks for value, _ in _uses(inner)
                )


def _owned(program: StepProgram, block: ir.Block) -> set[ir.Value]:
    """Values of a block whose buffers the step may reuse: everything it computes, accumulators,
    donated arguments."""
    computed = {result for op in body_of(block) for result in op.results}
    if block == program.main_block:
        return computed | {block.arguments[k] for k in read_donation(program.main)}
    return computed | {block.arguments[argument] for argument, _ in program.carried}
