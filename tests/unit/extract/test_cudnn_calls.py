"""Calls of cuDNN's attention: the rule that is read, and the call at the size of a tile, beside what
JAX writes for operands of that size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn.fused_attention_stablehlo import MaskType
from jax._src.cudnn.fused_attention_stablehlo import dot_product_attention as attend
from jaxlib.mlir import ir

from shardopt.extract.call_rules import CALL, call_limits, call_rule, fit_call
from shardopt.extract.fused_attention import attention_work
from shardopt.graph.attention_use import AttentionUse
from shardopt.ir.context import make_context
from shardopt.ir.rewriting import operations, shape_of
from tests.cudnn_attention import cuda_text, pretend_cudnn

B, T, S, N, M, H, V = 8, 128, 256, 4, 2, 64, 32


@pytest.fixture(autouse=True)
def _cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cudnn(monkeypatch)


Said = tuple[list[str], list[str], dict[str, str]]
Calls = Callable[[Callable[..., Any], Sequence[Any]], list[ir.Operation]]


@pytest.fixture
def calls() -> Iterator[Calls]:
    """Reads the custom calls of a function for GPUs."""
    kept = []

    def read(function: Callable[..., Any], types: Sequence[Any]) -> list[ir.Operation]:
        kept.append(ir.Module.parse(cuda_text(function, *types)))  # operations live in it
        return operations(kept[-1].operation, (CALL,))

    with make_context() as context, ir.Location.unknown(context):
        yield read


def _of(b: int, n: int, layout: str = "BTNH", beside: Sequence[str] = ()) -> list[Any]:
    """Types of queries, keys, values and what else is named, for so many rows and heads."""
    m = n * M // N
    shapes: list[tuple[int, ...]] = [(b, T, n, H), (b, S, m, H), (b, S, m, V)]
    if layout == "BNTH":
        shapes = [(b, heads, length, size) for b, length, heads, size in shapes]
    types = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    others = {
        "bias": ((b, n, T, S), jnp.bfloat16),
        "row": ((b, 1, T, S), jnp.bfloat16),
        "table": ((1, n, T, S), jnp.bfloat16),
        "length": ((b,), jnp.int32),
    }
    return types + [jax.ShapeDtypeStruct(*others[each]) for each in beside]


def _step(layout: str = "BTNH", names: Sequence[str] = (), **options: Any) -> Callable[..., Any]:
    """Gradients of queries, keys and values; of the bias, too, where there is one and `bias` asks
    for it."""
    bias = options.pop("bias", False)

    def loss(query: Any, key: Any, value: Any, *others: Any) -> jax.Array:
        named = dict(zip(names, others, strict=True))
        out = attend(query, key, value, **named, qkv_layout=layout, **options)
        return jnp.sum(out.astype(jnp.float32) ** 2)

    return jax.grad(loss, argnums=(0, 1, 2, 3) if bias else (0, 1, 2))


def _tile(op: ir.Operation, over: dict[int, int]) -> Said:
    """What the call says for one of so many tiles of each factor."""
    rule = call_rule(op)
    assert rule is not None

    def local(value: ir.Value, mapping: tuple[tuple[int, ...], ...]) -> ir.Type:
        counts = [prod(over.get(factor, 1) for factor in dim) for dim in mapping]
        shape = [extent // n for extent, n in zip(shape_of(value), counts, strict=True)]
        return ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type)

    holder = ir.Operation.create("builtin.module", regions=1)
    block = holder.regions[0].blocks.append(*map(local, op.operands, rule.operands))
    with ir.InsertionPoint(block):
        call = op.clone(ip=ir.InsertionPoint.current)
    for number, argument in enumerate(block.arguments):
        call.operands[number] = argument
    for result, mapping in zip(call.results, rule.results, strict=True):
        result.set_type(local(result, mapping))
    fit_call(call)
    return _said(call)


def _said(op: ir.Operation) -> Said:
    attributes = {
        op.attributes[k].name: str(op.attributes[k].attr) for k in range(len(op.attributes))
    }
    return [str(v.type) for v in op.operands], [str(v.type) for v in op.results], attributes


@pytest.mark.parametrize("layout", ["BTNH", "BNTH"])
@pytest.mark.parametrize(
    ("names", "beside", "options"),
    [
        ((), (), {}),
        ((), (), {"mask_type": MaskType.CAUSAL, "sliding_window_length": 32}),
        (("bias",), ("bias",), {"bias": True}),
        (("bias",), ("row",), {}),
        (("bias",), ("table",), {}),
        (("q_seqlen", "kv_seqlen"), ("length", "length"), {"mask_type": MaskType.PADDING_CAUSAL}),
    ],
    ids=["plain", "window", "bias", "row", "table", "lengths"],
)
def test_a_tile_is_what_jax_writes_for_operands_of_that_size(
    calls: Calls, layout: str, names: Any, beside: Any, options: dict[str, Any]
) -> None:
    """What JAX's own partitioning lowers on a device is the same function of tiles."""
    whole, rows, heads = (
        calls(_step(layout, names, **options), _of(*sizes, layout, beside))
        for sizes in ((B, N), (B // 4, N), (B, N // 2))
    )
    assert len(whole) == len(rows) == len(heads) == 2
    for op, fewer_rows, fewer_heads in zip(whole, rows, heads, strict=True):
        rule = call_rule(op)
        assert rule is not None
        [batch], key_heads = rule.operands[0][0], rule.operands[1][1 if layout == "BNTH" else 2]
        assert not {batch, *key_heads} & rule.need_replication
        assert _tile(op, {batch: 4}) == _said(fewer_rows)
        assert _tile(op, {key_heads[0]: 2}) == _said(fewer_heads)
        assert call_limits(op) == ""


def test_groups_of_queries_are_split_where_no_gradient_of_their_keys_is_summed(
    calls: Calls,
) -> None:
    forward, backward = calls(_step(), _of(B, N))
    for op, is_split in ((forward, True), (backward, False)):
        rule = call_rule(op)
        assert rule is not None
        of_keys, group = rule.operands[0][2]
        assert rule.operands[1][2] == (of_keys,) and rule.sizes[group] == N // M
        assert (group not in rule.need_replication) == is_split
        # Positions and the numbers of a head.
        assert {rule.operands[0][1][0], rule.operands[0][3][0]} <= rule.need_replication


def test_a_bias_whose_gradient_is_a_sum_keeps_its_dimensions_whole(calls: Calls) -> None:
    _, backward = calls(_step(names=("bias",), bias=True), _of(B, N, "BTNH", ("table",)))
    rule = call_rule(backward)
    assert rule is not None
    assert rule.operands[0][0][0] in rule.need_replication
    assert rule.operands[1][2][0] not in rule.need_replication
    assert call_limits(backward) == "the gradient of its bias adds up over rows of the batch"


def test_calls_that_run_whole_say_why(calls: Calls) -> None:
    packed = {
        name: jax.ShapeDtypeStruct((B, extent), jnp.int32)
        for name, extent in (("q_seqlen", 2), ("kv_seqlen", 2), ("q_offsets", 3), ("kv_offsets", 3))
    }
    for options, names, types, why in (
        ({"dropout_rate": 0.1}, (), [], "what it drops depends on the layout of its operands"),
        ({}, tuple(packed), list(packed.values()), "its sequences are packed"),
    ):
        for op in calls(_step(names=names, **options), [*_of(B, N), *types]):
            if "fmha" in str(op.attributes["call_target_name"]):
                assert call_rule(op) is None
                assert call_limits(op).startswith(why)


def test_a_configuration_that_jax_does_not_write_is_left_alone(calls: Calls) -> None:
    [call, _] = calls(_step(), _of(B, N))
    call.attributes["backend_config"] = ir.StringAttr.get("{}")
    assert call_rule(call) is None
    assert call_limits(call) == "its configuration is not one that JAX writes"
    assert attention_work(call) is None


def test_work_of_attention(calls: Calls) -> None:
    forward, backward = calls(_step(mask_type=MaskType.CAUSAL), _of(B, N))
    scores = B * N * T * S
    flops, use = attention_work(forward) or (0, None)
    assert flops == 2 * scores * (H + V)
    assert use == AttentionUse(H, S, triangular=True, backward=False)
    # The scores again, gradients of queries and of keys from those of the scores; that of values,
    # and that of the probabilities.
    flops, use = attention_work(backward) or (0, None)
    assert flops == 2 * scores * (3 * H + 2 * V)
    assert use is not None and use.backward
