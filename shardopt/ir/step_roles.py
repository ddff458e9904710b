"""What presets have to know of the body of a microbatch: which of its inputs are state, and which hold the batch.

The shard phase reads the same from the arguments of `@main` (`shardopt.ir.batch_arguments`). The body is given what the
prologue makes of them: the batch as a stack of microbatches, of which it cuts one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxlib.mlir import ir

from shardopt.dialect.donation import read_donation
from shardopt.ir.batch_arguments import batch_numbers
from shardopt.ir.graph import read_tensor
from shardopt.ir.program import Program
from shardopt.ir.rewriting import defining

# What stacks microbatches.
_STACKING = frozenset({"stablehlo.reshape", "stablehlo.transpose"})


def body_roles(
    program: Program, tensor: Callable[[ir.Value], int], batch_args: Sequence[str]
) -> tuple[frozenset[int], dict[int, int]]:
    """State among the captured values, and captured values that hold the batch with the dimension it lies on.

    `tensor` numbers the values of the body. Raises ValueError for malformed `batch_args`.
    """
    arguments = list(program.main_block.arguments)
    number: dict[ir.Value, int] = {argument: k for k, argument in enumerate(arguments)}
    donated = read_donation(program.main).keys()
    batch = batch_numbers({k: read_tensor(a.type) for k, a in enumerate(arguments)}, donated, batch_args)
    state: set[int] = set()
    found: dict[int, int] = {}
    for k, value in program.captured.items():
        origin = number.get(_unstacked(value))
        captured = tensor(program.body_block.arguments[k])
        if origin in donated and origin == number.get(value):
            state.add(captured)
        elif origin in batch:
            found[captured] = batch[origin] if origin == number.get(value) else _first_long(value)
    return frozenset(state), found


def _unstacked(value: ir.Value) -> ir.Value:
    """The value that reshapes and transposes made another one of."""
    op = defining(value)
    while op is not None and op.name in _STACKING:
        value = op.operands[0]
        op = defining(value)
    return value


def _first_long(value: ir.Value) -> int:
    """The dimension of a stack that the batch lies on when there is but one microbatch."""
    shape = ir.RankedTensorType(value.type).shape
    return next((dim for dim, extent in enumerate(shape) if extent > 1), 0)
