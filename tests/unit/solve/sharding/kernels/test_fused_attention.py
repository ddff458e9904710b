"""Attention as kernels that write no scores: which operations of a compiled step they are, what is
left in memory, and in which order kernels can run."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import cache, partial
from math import prod

import jax
import jax.numpy as jnp
import pytest
from jaxlib.mlir import ir

from shardopt.extract.mesh_graphs import read_plain
from shardopt.extract.op_graph import sharding_rules
from shardopt.graph.op_graph import OpGraph
from shardopt.hardware.cluster import Fusing
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions
from shardopt.mesh.mesh import Mesh
from shardopt.pipeline.manager import run_pipeline
from shardopt.solve.sharding.intra_op.cheap_to_clone import find_cheap_to_clone
from shardopt.solve.sharding.kernels.attention import FusedAttention, find_attention
from shardopt.solve.sharding.kernels.execution_order import execution_order
from shardopt.solve.sharding.kernels.fusion import CHEAP
from shardopt.solve.sharding.kernels.kernel_bytes import kernel_accesses
from shardopt.solve.sharding.kernels.merged_kernels import find_kernels

# Sizes that no two dimensions share, so that scores are told by their shape.
BATCH, HEADS, TOKENS, SIZE, VOCAB = 3, 2, 40, 16, 50
HIDDEN = HEADS * SIZE
SCORES = BATCH * HEADS * TOKENS * TOKENS


def attend(query: jax.Array, key: jax.Array, value: jax.Array, masked: bool) -> jax.Array:
    scores = jnp.einsum("bqnd,bknd->bnqk", query, key)
    if masked:
        rows = jax.lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 0)
        columns = jax.lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 1)
        scores = jnp.where(rows >= columns, scores, -1e4)
    return jnp.einsum("bnqk,bknd->bqnd", jax.nn.softmax(scores), value)


def loss(weights: dict[str, jax.Array], x: jax.Array, masked: bool, again: bool) -> jax.Array:
    """Two layers of attention, and cross entropy, which has a softmax of its own."""
    core = partial(attend, masked=masked)
    for layer in range(2):
        joined = jnp.einsum("bsh,hcnd->bscnd", x, weights[f"in{layer}"])
        attended = (jax.checkpoint(core) if again else core)(
            joined[:, :, 0], joined[:, :, 1], joined[:, :, 2]
        )
        x = x + jnp.einsum("bqnd,ndh->bqh", attended, weights[f"out{layer}"])
    return -jnp.mean(jax.nn.log_softmax(x @ weights["head"])[..., 0])


@cache
def graph_of(masked: bool = True, again: bool = False, trained: bool = True) -> OpGraph:
    """A step as the planner reads it, on one device."""
    shapes: dict[str, tuple[int, ...]] = {"head": (HIDDEN, VOCAB)}
    for layer in range(2):
        shapes |= {f"in{layer}": (HIDDEN, 3, HEADS, SIZE), f"out{layer}": (HEADS, SIZE, HIDDEN)}
    weights = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    x = jax.ShapeDtypeStruct((BATCH, TOKENS, HIDDEN), jnp.float32)
    step = partial(loss, masked=masked, again=again)
    lowered = jax.jit(jax.grad(step) if trained else step).trace(weights, x).lower()
    buffer = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(buffer)
    with make_context() as context, ir.Location.unknown():
        module = load_module(buffer.getvalue(), context)
        run_pipeline(module, "builtin.module(shardopt-import)")
        with sharding_rules(module):
            return read_plain(next(functions(module)), Mesh("m", (("x", 1),), (0,))).graph


def kernels(graph: OpGraph) -> list[list[bool]]:
    """For each place of attention, whether its kernels are of the backward pass."""
    return [[kernel.use.backward for kernel in place.kernels] for place in find(graph)]


def find(graph: OpGraph) -> tuple[FusedAttention, ...]:
    return find_attention(graph, CHEAP)


def products(graph: OpGraph, place: FusedAttention) -> list[int]:
    """How many products each kernel computes."""
    return [
        sum(graph.ops[op].name == "dot_general" for op in kernel.ops) for kernel in place.kernels
    ]


def test_a_layer_has_one_kernel_forward_and_one_backward() -> None:
    """Backward takes the scores' product again, and those of four gradients, as FlashAttention
    does; cross entropy has no part in it."""
    graph = graph_of()
    assert kernels(graph) == [[False, True]] * 2
    assert [products(graph, place) for place in find(graph)] == [[2, 5]] * 2
    assert kernels(graph_of(trained=False)) == [[False]] * 2


def test_what_is_recomputed_is_a_place_of_its_own() -> None:
    graph = graph_of(again=True)
    assert sorted(kernels(graph)) == [[False], [False], [True], [True]]
    assert sorted(products(graph, place) for place in find(graph)) == [[2], [2], [5], [5]]


@pytest.mark.parametrize("masked", [True, False])
def test_a_kernel_knows_heads_keys_and_mask(masked: bool) -> None:
    uses = {kernel.use for place in find(graph_of(masked)) for kernel in place.kernels}
    assert {(use.head, use.keys, use.triangular) for use in uses} == {(SIZE, TOKENS, masked)}


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("merged", [False, True])
def test_no_scores_lie_in_memory(merged: bool, again: bool) -> None:
    graph = graph_of(again=again)
    cheap = find_cheap_to_clone(graph)
    large = {
        tensor
        for op in graph.ops
        for tensor in op.results
        if prod(graph.tensors[tensor].shape) == SCORES
    }
    fused = find_kernels(graph, cheap, Fusing(merged, attention=True)).fused
    assert large and large <= fused
    assert not large <= find_kernels(graph, cheap, Fusing(merged)).fused


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("merged", [False, True])
def test_kernels_run_behind_what_they_read(merged: bool, again: bool) -> None:
    graph = graph_of(again=again)
    cheap = find_cheap_to_clone(graph)
    fusion = find_kernels(graph, cheap, Fusing(merged, attention=True))
    order = execution_order(graph, cheap, fusion).order
    assert sorted(order) == list(range(len(graph.ops)))
    at = {op: place for place, op in enumerate(order)}
    ends = {op: max(at[each] for each in _members(fusion.kernel, op)) for op in at}
    # What is fused is computed where it is used.
    for tensor, readers in enumerate(fusion.readers):
        maker = graph.producers()[tensor]
        for reader in readers if maker >= 0 else ():
            if fusion.kernel[maker] != fusion.kernel[reader]:
                done = at[maker] if tensor in fusion.fused else ends[maker]
                assert done < ends[reader]


def _members(kernel: tuple[int, ...], op: int) -> list[int]:
    return [other for other, its in enumerate(kernel) if its == kernel[op]]


def test_the_product_of_scores_counts_for_both_kernels() -> None:
    graph = graph_of()
    fusion = find_kernels(graph, find_cheap_to_clone(graph), Fusing(attention=True))
    accesses = kernel_accesses(graph, fusion)
    for place in find(graph):
        first, *_, last = sorted(op for op in place.home if graph.ops[op].name == "dot_general")
        assert accesses[first].counts[-1] == 0 and accesses[last].counts[-1] == 1
        assert [use.backward for use in accesses[first].attention] == [False, True]
        assert [use.backward for use in accesses[last].attention] == [True]


def test_scores_that_leave_have_to_be_written() -> None:
    """The weights of attention as a result, and residuals that another fragment reads."""
    graph = graph_of()
    places = find(graph)
    kept = replace(graph, outputs=(*graph.outputs, min(places[0].scores)))
    assert len(find(kept)) == len(places) - 1
    turn = max(place.kernels[0].end for place in places)
    ops = tuple(replace(op, group=int(index > turn)) for index, op in enumerate(graph.ops))
    assert not find(replace(graph, ops=ops))
