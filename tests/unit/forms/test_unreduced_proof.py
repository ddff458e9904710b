"""Every single change of what is unreduced in a sharded module is noticed, unless it changes
nothing."""

from __future__ import annotations

from pathlib import Path

from jaxlib.mlir import ir

from shardopt.forms.sharded_form import violations
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import operations
from shardopt.pipeline.manager import run_pipeline

# A step with two accumulators that stay unreduced over the microbatches.
SUMS = Path(__file__).parents[2] / "lit" / "passes" / "choose-shardings-sums.mlir"
OPTIONS = "cluster=cpu-test:1x4 memory-fraction=0 gap=0"

OTHER = {"{unreduced}": "{replicated}", "{replicated}": "{unreduced}"}


def test_every_swap_of_unreduced_and_replicated_is_refused() -> None:
    module = load_module(SUMS, make_context())
    run_pipeline(module, f"shardopt-shard{{{OPTIONS}}}")
    assert list(violations(module)) == []
    annotated = [
        op
        for op in operations(module.operation)
        if "mhlo.sharding" in op.attributes and text_of(op) in OTHER
    ]
    unnoticed = [(op.name, text_of(op)) for op in annotated if not is_noticed(module, op)]
    # Zeros are terms and the sum of them alike, and what is not summed up at a sum point is summed
    # up by its readers.
    harmless = {"stablehlo.constant", "stablehlo.custom_call"}
    assert {name for name, _ in unnoticed} == harmless
    texts = [text_of(op) for op in annotated if op.name not in harmless]
    assert texts.count("{unreduced}") == 4


def is_noticed(module: ir.Module, op: ir.Operation) -> bool:
    """Whether the form is refused while the annotation of `op` is the other one."""
    before = text_of(op)
    annotate(op, OTHER[before])
    try:
        return bool(list(violations(module)))
    finally:
        annotate(op, before)


def text_of(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["mhlo.sharding"]).value


def annotate(op: ir.Operation, text: str) -> None:
    op.attributes["mhlo.sharding"] = ir.StringAttr.get(text, context=op.context)
