"""Builders have as many weights as are published."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from shardopt.models.build import build
from shardopt.models.specs import DeepseekSpec, GptSpec, LlamaSpec, ResnetSpec, Spec
from shardopt.models.train_step import first_state, make_step
from shardopt.models.weights import count

# Weights as the publications count them: LLaMA 2 (arXiv 2307.09288; the checkpoints' 6,738,415,616
# and 68,976,648,192), LLaMA 3.1 (8,030,261,248 of its checkpoint), DeepSeek-V3 (671,026,419,200 of its checkpoint without the layer
# that predicts a second token, of which 58 * 256 are biases of routing), Wide-ResNet of Alpa's artifact.
PUBLISHED: dict[str, tuple[Spec, float]] = {
    "llama2-7b": (LlamaSpec(4096, 32, 32, 32, 11008), 6_738_415_616),
    "llama2-70b": (LlamaSpec(8192, 80, 64, 8, 28672), 68_976_648_192),
    "llama3.1-8b": (LlamaSpec(4096, 32, 32, 8, 14336, vocab=128256), 8_030_261_248),
    "deepseek-v3": (DeepseekSpec(), 671_026_419_200 - 58 * 256),
    "wresnet-250m": (ResnetSpec(50, 160, 2), 0.254e9),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_are_as_many_as_published(name: str) -> None:
    spec, published = PUBLISHED[name]
    exact = isinstance(spec, DeepseekSpec | LlamaSpec)
    assert count(build(spec).weights) == pytest.approx(published, rel=1e-9 if exact else 2e-3)
    assert not hasattr(spec, "parameters") or spec.parameters == count(build(spec).weights)


def test_a_tied_embedding_has_no_head() -> None:
    free, tied = (GptSpec(64, 2, 4, sequence=8, vocab=96, tied=tied) for tied in (False, True))
    assert count(build(free).weights) - count(build(tied).weights) == 64 * 96


def test_a_step_with_latent_attention_and_routed_experts_learns() -> None:
    spec = DeepseekSpec(
        hidden=32,
        layers=2,
        dense_layers=1,
        heads=2,
        head=8,
        rotary=4,
        query_rank=16,
        latent_rank=12,
        ffn=48,
        experts=4,
        active=2,
        expert_ffn=16,
        sequence=16,
        vocab=64,
        batch=2,
        group=32,
    )
    model = build(spec, "f32")
    tokens = np.random.default_rng(0).integers(0, spec.vocab, (2, 17), dtype=np.int32)
    batch = {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]}
    step, state = jax.jit(make_step(model)), first_state(model)
    losses = []
    for _ in range(8):
        state, loss = step(state, batch)
        losses.append(float(loss))
    assert losses[-1] < 0.9 * losses[0]
