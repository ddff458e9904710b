"""How the blocks of a decoder compute, whatever they compute: in which numbers products with
weights are taken, and what the backward pass computes again. `shardopt.models.blocks` does so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What the backward pass of a block computes again, of what a step without recomputation keeps.
Recomputed = Literal[
    "none", "attention", "per-operation", "all-but-products", "all-but-attention", "whole"
]

Entropy = Literal["merged", "wide", "in-passes"]


@dataclass(frozen=True)
class Computing:
    """`float8` takes products of activations with weights of blocks in 8 bits, with one scale a
    tensor: e4m3 forward, e5m2 for gradients (arXiv 2209.05433, section 3). Attention, norms and the
    product that makes logits stay in the type of the model.

    `recomputed` is `none`; `attention`, what lies between the products with weights on either side
    of attention (Korthikanti et al., arXiv 2205.05198, section 5); `per-operation`, all but the
    results of attention and of every second product with weights, in the order of a block
    (torchtitan's selective recomputation by operation, arXiv 2410.06511); `all-but-products`, all
    but the results of products without batch dimensions (JAX's policy
    `dots_with_no_batch_dims_saveable`); `all-but-attention`, all but the results of attention; or
    `whole`, the forward pass to its end, also what the backward pass does not read, as where a
    library runs it again.

    `carries_copies` lets the state hold the weights in the numbers of the model as well, so that a
    step computes with what it is handed, and reads the float32 weights in its update alone. ZeRO
    splits these with the optimizer state then (arXiv 1910.02054, section 5).

    `drops` drops out a tenth of attention's weights and of what each part of a block adds (arXiv
    1706.03762, section 5.4). Which ones is the same in every step: what that costs is all that such
    models are for.

    `clips` bounds the norm of all gradients (Pascanu et al., arXiv 1211.5063, section 3.2) as
    libraries do that merge no kernels: their squares are summed up in a pass of their own, and they
    are multiplied in another.

    `looks_up_by_product` makes embeddings as the product of one-hot rows and the table.
    `wide_softmax` takes the softmax of attention in float32, whatever the scores are in.
    `keeps_shares` has a kernel for it whose backward pass reads the result alone.
    `sums_wide` makes gradients of weights in float32 where they are made, so that microbatches and
    replicas are summed up in float32 too. `sums_narrow` has them summed up in the numbers in which
    they are made, where a planner would cast them first if their update does. `entropy` is how the
    loss is taken: `merged` from logits as they are; `wide` by a log-softmax of their float32
    values, as libraries do whose compiler leaves it out; or `in-passes`, operation by operation of
    these. `rotates_in_passes` turns queries and keys as complex numbers of float32, which compilers
    leave to kernels of their own: to float32, the multiplication, and back.

    `repeats_keys` writes keys and values once for each head of queries that shares them.

    `in_passes` computes as libraries do that compile nothing: norms by root mean squares and gates
    operation by operation, forwards and backwards, and residuals of their blocks in a kernel of
    their own (`shardopt.models.passes`). For norms around the mean and GELU these have kernels.

    `normalizes_sums` normalizes what a part of a block and its input sum up to, and what embeddings
    sum up to, as BERT does (arXiv 1706.03762, section 3.1), where others normalize the input of
    each part and of the last product. Then the backward pass reads the results of all parts."""

    float8: bool = False
    recomputed: Recomputed = "none"
    carries_copies: bool = False
    drops: bool = False
    clips: bool = False
    looks_up_by_product: bool = False
    wide_softmax: bool = False
    keeps_shares: bool = False
    sums_wide: bool = False
    sums_narrow: bool = False
    entropy: Entropy = "merged"
    rotates_in_passes: bool = False
    repeats_keys: bool = False
    in_passes: bool = False
    normalizes_sums: bool = False


PLAIN = Computing()
