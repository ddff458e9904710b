"""What is known of values in a program that sorts its rows, and what padding behind the last row
holds (`shardopt.passes.importing.sorted_rows`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from shardopt.ir.rewriting import defining, past_barriers
from shardopt.ir.splats import read_splat

ELEMENTWISE = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "complex", "convert"),
        *("cosine", "count_leading_zeros", "divide", "exponential", "exponential_minus_one"),
        *("floor", "imag", "is_finite", "log", "log_plus_one", "logistic", "maximum", "minimum"),
        *("multiply", "negate", "not", "or", "popcnt", "power", "real", "reduce_precision"),
        *("remainder", "round_nearest_afz", "round_nearest_even", "rsqrt", "select"),
        *("shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sine", "sqrt"),
        *("subtract", "tan", "tanh", "xor"),
    )
)
# Those that make zero of zeros.
_KEEPS_ZERO = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("abs", "add", "ceil", "convert", "exponential_minus_one", "floor", "log_plus_one"),
        *("maximum", "minimum", "negate", "or", "reduce_precision", "sign", "sine", "sqrt"),
        *("subtract", "tanh", "xor"),
    )
)


class NotSorted(Exception):
    """Something needs the order in which rows are sorted."""


@dataclass(frozen=True)
class Sorted:
    """A value that is sorted along `dim`, with so many rows of padding behind the last. These are
    zeros (`filled` False), ones (True), or anything (None)."""

    dim: int
    padding: int = 0
    filled: bool | None = None
    is_order: bool = False  # whether it is σ itself

    def at(self, dim: int, filled: bool | None = None) -> Sorted:
        return Sorted(dim, self.padding, filled)


@dataclass(frozen=True)
class Inverse:
    """At row s along `dim`, the position of that row."""

    dim: int


@dataclass(frozen=True)
class Shifted:
    """An inverse permutation with something added, which wraps negative indices."""


@dataclass(frozen=True)
class Placed:
    """Row j of `source`, which is not sorted, written in the place of row σ(j)."""

    source: ir.Value


Kind = Sorted | Inverse | Shifted | Placed


def splat_fill(value: ir.Value) -> bool | None:
    """Whether all elements are zero (False) or, of booleans, true."""
    op = defining(past_barriers(value))
    while op is not None and op.name == "stablehlo.broadcast_in_dim":
        op = defining(past_barriers(op.operands[0]))
    splat = read_splat(op) if op is not None and op.name == "stablehlo.constant" else None
    if splat is None:
        return None
    if splat == 0:
        return False
    element = ir.RankedTensorType(value.type).element_type
    is_bool = isinstance(element, ir.IntegerType) and element.width == 1
    return True if is_bool else None


def filled_by(name: str, fills: Sequence[bool | None]) -> bool | None:
    """What padding holds where its operands hold zeros, or true, or anything."""
    if name in ("stablehlo.and", "stablehlo.multiply") and False in fills:
        return False
    if name == "stablehlo.or" and True in fills:
        return True
    if name == "stablehlo.and":
        return True if set(fills) == {True} else None
    if name == "stablehlo.not":
        return None if fills[0] is None else not fills[0]
    if name == "stablehlo.select":
        predicate, on_true, on_false = fills
        if predicate is not None:
            return on_true if predicate else on_false
        return on_true if on_true == on_false else None
    return False if name in _KEEPS_ZERO and set(fills) == {False} else None
