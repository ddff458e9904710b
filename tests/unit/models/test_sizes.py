"""Builders have as many weights as are published."""

from __future__ import annotations

import pytest

from shardopt.models.build import build
from shardopt.models.specs import GptSpec, LlamaSpec, ResnetSpec, Spec
from shardopt.models.weights import count

# Weights as the publications count them: LLaMA 2 (arXiv 2307.09288; the checkpoints' 6,738,415,616
# and 68,976,648,192), LLaMA 3.1 (8,030,261,248 of its checkpoint), Wide-ResNet of Alpa's artifact.
PUBLISHED: dict[str, tuple[Spec, float]] = {
    "llama2-7b": (LlamaSpec(4096, 32, 32, 32, 11008), 6_738_415_616),
    "llama2-70b": (LlamaSpec(8192, 80, 64, 8, 28672), 68_976_648_192),
    "llama3.1-8b": (LlamaSpec(4096, 32, 32, 8, 14336, vocab=128256), 8_030_261_248),
    "wresnet-250m": (ResnetSpec(50, 160, 2), 0.254e9),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_are_as_many_as_published(name: str) -> None:
    spec, published = PUBLISHED[name]
    exact = isinstance(spec, LlamaSpec)
    assert count(build(spec).weights) == pytest.approx(published, rel=1e-9 if exact else 2e-3)
    assert not hasattr(spec, "parameters") or spec.parameters == count(build(spec).weights)


def test_a_tied_embedding_has_no_head() -> None:
    free, tied = (GptSpec(64, 2, 4, sequence=8, vocab=96, tied=tied) for tied in (False, True))
    assert count(build(free).weights) - count(build(tied).weights) == 64 * 96
