"""docs/reference/operations.md, made from small examples of all operations.

Run by `python -m tests.unit.operations.operations_page`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase

from jaxlib.mlir import ir

from shardopt.dialect.program import body_of
from shardopt.extract.control_flow import RegionReader
from shardopt.extract.op_graph import sharding_rules
from shardopt.graph.op_graph import FactorRule, Op, OpGraph
from shardopt.graph.windows import fits
from shardopt.ir.context import make_context
from shardopt.ir.loops import UNKNOWN_TRIPS
from shardopt.ir.rewriting import functions
from shardopt.solve.sharding.strategies.factors import (
    OPAQUE_OPS,
    WITHOUT_RULE,
    shardable_factors,
    why_opaque,
)
from tests.unit.operations.op_examples import EXAMPLES, Example

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "operations.md"
# Tiles of a dimension: a window that reaches over all of it cannot even be split in two.
_FEW = 2
_HEAD = """# Operations and how they are split

This page is made from small examples of all operations (tests/unit/operations/op_examples.py) by
`python -m tests.unit.operations.operations_page`; a test checks that it is up to date. Another test
(tests/e2e/test_op_strategies.py) compiles every strategy of every example on four devices, and compares numbers and
collectives with those that the planner predicts.

In the column *dimensions* each letter is a factor. Dimensions with the same letter are split together. The next columns
say what becomes of each factor:

* *split*: it can be split without communication.
* *reduced*: it is contracted. If it is split, the result is all-reduced, reduce-scattered, or stays unreduced.
* *bordered*: a window moves along it. If it is split, neighbours exchange the elements that cross a border
  (collective-permute).
* *whole*: it is not split.

A mesh axis that does not divide the extent of a dimension splits it with
[padding](../concepts/intra-op.md#dimensions-that-no-axis-divides). The remark `uneven-dimension` names dimensions that
are too short for that.

| operation | dimensions | split | reduced | bordered | whole |
|---|---|---|---|---|---|
"""
_CONTROL = """
## Control flow

Operations inside `while`, `case` and `if` are planned like all others.

* A value that a loop carries has one sharding from its entry to the result of the loop. It may be resharded before the
  loop and at the end of each iteration.
* The cost of an iteration counts as often as the loop runs. If that depends on data, it counts {trips} times (remark
  `unknown-trip-count`).
* The costs of all branches count, as if every branch ran.
* `optimization_barrier` is transparent: each result has the sharding of its operand.

## Operations that run replicated

Each kind gets one remark, `no-sharding-rule`.

| operation | why |
|---|---|
"""


def graph_of(example: Example) -> OpGraph:
    """The graph of the body of `@main`."""
    with make_context():
        module = ir.Module.parse(example.text)
        block = next(functions(module)).regions[0].blocks[0]
        reader = RegionReader()
        for argument in block.arguments:
            reader.tensor(argument)
        with sharding_rules(module):
            reader.add_ops(body_of(block))
        return reader.graph()


def op_of(example: Example) -> Op:
    """The operation in question."""
    return next(op for op in graph_of(example).ops if op.name == example.op)


def page() -> str:
    reasons = {**OPAQUE_OPS, **WITHOUT_RULE}
    rows = (
        f"| `{name}` | {why} |\n"
        for name, why in sorted(reasons.items())
        if name not in ("case", "if", "while")
    )
    return _HEAD + "".join(_rows()) + _CONTROL.format(trips=UNKNOWN_TRIPS) + "".join(rows)


def _rows() -> Iterator[str]:
    rows: dict[tuple[str, ...], list[str]] = {}
    for example in EXAMPLES:
        op = op_of(example) if example.op != "optimization_barrier" else None
        if op is not None and op.rule is not None and not why_opaque(op):
            rows.setdefault(_cells(op, op.rule), []).append(example.name.replace(":", ", "))
    for cells, names in rows.items():
        yield f"| {'; '.join(names)} | {' | '.join(cells)} |\n"


def _cells(op: Op, rule: FactorRule) -> tuple[str, ...]:
    split = set(shardable_factors(op))
    moving = {window.factor for window in op.windows if fits(window, _FEW)} & split
    split -= {window.factor for window in op.windows} - moving
    used = {
        f
        for dims in (*rule.operands, *rule.results)
        for dim in dims
        for f in dim
        if rule.sizes[f] > 1
    }
    groups = (
        split - moving - rule.reduction,
        (split & rule.reduction) - moving,
        moving,
        used - split,
    )
    operands, results = (
        ", ".join(_tensor(dims) for dims in side) for side in (rule.operands, rule.results)
    )
    return f"`{operands} -> {results}`", *(
        " ".join(ascii_lowercase[f] for f in sorted(group)) for group in groups
    )


def _tensor(dims: tuple[tuple[int, ...], ...]) -> str:
    return "[" + " ".join("".join(ascii_lowercase[f] for f in dim) or "1" for dim in dims) + "]"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
