"""`shardopt.strategy`: how one operation is to be split, as it stands between the sharding passes.

    stablehlo.dot_general … {shardopt.strategy = "[{x}, {}], [{}, {y}] -> [{x}, {y}]"}
    stablehlo.dot_general … {shardopt.strategy = "[{}, {x}], [{x}, {}] -> [{x}, {}] from [{}, {}]"}

Left of the arrow stand the shardings that the operation wants of its operands and then of what its
regions capture, right of it those of its results. Behind `from` stands what the operation itself
makes where that differs: the whole sum before each device keeps its part, or terms before the sum.
On the `@main` of a plain module it is the shardings of arguments and results.

`shardopt.clone` beside it says that a reader which wants another sharding gets a clone of the
operation, because to recompute the value is cheaper than to move it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from jaxlib.mlir import ir

from shardopt.mesh.mesh import Sharding
from shardopt.mesh.sharding_text import parse_sharding, sharding_text

STRATEGY = "shardopt.strategy"
CLONE = "shardopt.clone"

_ONE = r"\[[^\[\]]*\](?:\s*\+\s*\{[^{}]*\})?"
_LIST = rf"(?:{_ONE}(?:\s*,\s*{_ONE})*)?"
_FORM = re.compile(
    rf"\s*(?P<operands>{_LIST})\s*->\s*(?P<results>{_LIST})(?:\s*from\s+(?P<made>{_LIST}))?\s*"
)
_EXPECTED = "expected a strategy such as '[{x}, {}], [{}] -> [{x}]'"


@dataclass(frozen=True)
class OpStrategy:
    """Shardings wanted of the operands, those of the results, and what the operation itself
    makes."""

    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    made: tuple[Sharding, ...]

    @classmethod
    def plain(cls, operands: Sequence[Sharding], results: Sequence[Sharding]) -> OpStrategy:
        """The strategy of an operation that makes its results as they stay."""
        return cls(tuple(operands), tuple(results), tuple(results))

    @property
    def is_scattered(self) -> bool:
        """Whether the operation makes something else than what stays of its results."""
        return self.made != self.results

    def __str__(self) -> str:
        sides = (", ".join(map(sharding_text, side)) for side in (self.operands, self.results))
        text = " -> ".join(sides).strip()
        if self.is_scattered:
            text += f" from {', '.join(map(sharding_text, self.made))}"
        return text


@lru_cache(maxsize=65536)  # layers repeat, and so do their strategies
def parse_strategy(text: str) -> OpStrategy:
    """Raises ValueError for another form."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{_EXPECTED}, found {text!r:.80}")
    operands, results = _shardings(match["operands"]), _shardings(match["results"])
    made = results if match["made"] is None else _shardings(match["made"])
    if len(made) != len(results):
        raise ValueError(f"expected {len(results)} shardings behind 'from', found {text!r:.80}")
    return OpStrategy(operands, results, made)


def _shardings(text: str) -> tuple[Sharding, ...]:
    return tuple(parse_sharding(one) for one in re.findall(_ONE, text))


def strategy_attr(strategy: OpStrategy, context: ir.Context) -> ir.StringAttr:
    return ir.StringAttr.get(str(strategy), context)


def write_strategy(op: ir.Operation, strategy: OpStrategy) -> None:
    op.attributes[STRATEGY] = strategy_attr(strategy, op.context)


def read_strategy(op: ir.Operation) -> OpStrategy:
    """Raises ValueError where it is missing or is none."""
    if STRATEGY not in op.attributes:
        raise ValueError(f"expected attribute '{STRATEGY}' on '{op.name}', found none")
    attribute = op.attributes[STRATEGY]
    if not isinstance(attribute, ir.StringAttr):
        raise ValueError(f"{_EXPECTED}, found {attribute}")
    return parse_strategy(attribute.value)
