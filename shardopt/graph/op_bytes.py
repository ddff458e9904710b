"""Bytes that StableHLO operations read and write in memory, as XLA's HloCostAnalysis counts them
when run alone.

Most operations read every operand and write every result in full. The exceptions touch as much of
one tensor as another has elements: a gather reads of its operand what ends up in the result. So
bytes are sizes of the operation's own tensors times a share, and hold for the local shapes of one
device as for global ones. What is fused into another operation touches no memory at all:
`shardopt.solve.sharding.kernels.kernel_bytes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

# For each tensor of an operation, operands first: the tensor that has as many bytes as are touched,
# and the share of them that are.
Touched = tuple[tuple[int, float], ...]

# Operations whose results are their operands under another name, or that run before the program
# does.
_FREE = frozenset(
    {
        "after_all",
        "bitcast",
        "constant",
        "create_token",
        "get_tuple_element",
        "optimization_barrier",
        "reshape",
        "sharding",
        "tuple",
    }
)


@cache
def touched(name: str, num_operands: int, num_results: int) -> Touched:
    """What an operation (its name without dialect) reads of each operand and writes of each
    result."""
    if name in _FREE:
        return tuple((k, 0.0) for k in range(num_operands + num_results))
    full = [(k, 1.0) for k in range(num_operands + num_results)]
    if name in _RULES:
        _RULES[name](full, num_operands)
    return tuple(full)


def touched_bytes(
    name: str, operand_bytes: Sequence[float], result_bytes: Sequence[float]
) -> float:
    """Bytes read and written by an operation that runs alone, given the bytes of its tensors."""
    sizes = (*operand_bytes, *result_bytes)
    return sum(
        sizes[k] * share for k, share in touched(name, len(operand_bytes), len(result_bytes))
    )


Rows = list[tuple[int, float]]


def _part_of_first(rows: Rows, num_operands: int) -> None:
    """Of operand 0 is read what ends up in the result."""
    rows[0] = (num_operands, 1.0)


def _in_place(rows: Rows, num_operands: int) -> None:
    """The result is operand 0 but for the update, operand 1."""
    rows[0], rows[num_operands] = (0, 0.0), (1, 1.0)


def _scatter(rows: Rows, num_operands: int) -> None:
    """Operands are n inputs, the indices, n updates; of an input are read and written as many
    elements as come in."""
    count = num_operands // 2
    for k in range(count):
        rows[k] = rows[num_operands + k] = (count + 1 + k, 1.0)


def _shape_aside(rows: Rows, num_operands: int) -> None:
    """The last operand says how large the result is."""
    rows[num_operands - 1] = (num_operands - 1, 0.0)


def _triangle(rows: Rows, num_operands: int) -> None:
    rows[0] = (0, 0.5)


def _two_triangles(rows: Rows, num_operands: int) -> None:
    rows[0], rows[num_operands] = (0, 0.5), (num_operands, 0.5)


_RULES: dict[str, Callable[[Rows, int], None]] = {
    "gather": _part_of_first,
    "dynamic_slice": _part_of_first,
    "slice": _part_of_first,
    "dynamic_update_slice": _in_place,
    "scatter": _scatter,
    "rng": _shape_aside,
    "triangular_solve": _triangle,
    "cholesky": _two_triangles,
}
