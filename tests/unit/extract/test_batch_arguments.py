"""Batch arguments by number and by name: which are chosen, and what is said when none is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from jaxlib.mlir import ir

from shardopt.extract.batch_arguments import check_extent, named_batch
from shardopt.ir.context import make_context
from shardopt.ir.diagnostics import DiagnosedError
from shardopt.ir.rewriting import functions

STEP = """
func.func @main(
    %w: tensor<8x2xf32> {tf.aliasing_output = 0 : i32} loc("state.params['batch']"),
    %x: tensor<8x3xf32> loc("batch['x']"), %y: tensor<3x8xi32> loc("batch['y[0]']"), %n: tensor<i32> loc("batch['n']"),
    %key: tensor<2xui32> loc("key"), %late: tensor<8xf32> loc("batch_2")) -> tensor<8x2xf32> {
  return %w : tensor<8x2xf32>
}
"""


@pytest.fixture(scope="module")
def main() -> Iterator[ir.Operation]:
    with make_context():
        module = ir.Module.parse(STEP)
        yield next(iter(functions(module)))


@pytest.mark.parametrize(
    ("texts", "chosen"),
    [
        ("1", {1: 0}),
        ("1,2:1", {1: 0, 2: 1}),
        ("batch['x']", {1: 0}),
        ("batch['y[0]']:1", {2: 1}),
        ("batch", {1: 0, 2: 0}),  # the scalar in the tree has no dimension
        ("batch*", {1: 0, 2: 0, 5: 0}),
        ("batch:1", {1: 1, 2: 1}),
        ("batch['?']", {1: 0}),
        ("2:1,batch,batch_2", {1: 0, 2: 1, 5: 0}),  # the first item that names it
        ("state", {0: 0}),
        ("state.params['batch']", {0: 0}),
        ("none", {}),
    ],
)
def test_arguments_are_named(main: ir.Operation, texts: str, chosen: dict[int, int]) -> None:
    batches = named_batch(main, texts.split(","))
    assert {batch.index: batch.dim for batch in batches} == chosen


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            "bat",
            r"none called 'bat' \(1: batch\['x'\] tensor<8x3xf32>, .*, 5: batch_2 tensor<8xf32>\)$",
        ),
        ("batch['[xy]']", "none called"),
        ("batch,elsewhere", "none called 'elsewhere'"),
        (
            "batch['n']",
            r"expected a batch argument with rows, found argument 3 \(batch\['n'\]\), a scalar",
        ),
        ("6", "expected a batch argument below 6, found 6"),
        (
            "2",
            r"extent 3 of dimension 0 of argument 2 \(batch\['y\[0\]'\]\); its divisors are 1, 3",
        ),
    ],
)
def test_mistakes_are_told_with_names(main: ir.Operation, texts: str, message: str) -> None:
    with pytest.raises(DiagnosedError, match=message):
        for batch in named_batch(main, texts.split(",")):
            check_extent(main, batch, 2)


@pytest.mark.parametrize("texts", [":1", "x:", "x:y", "1:x", "auto,1", "1,none", ""])
def test_malformed_items_are_refused(main: ir.Operation, texts: str) -> None:
    with pytest.raises(ValueError, match="expected batch-args to be"):
        named_batch(main, texts.split(","))
