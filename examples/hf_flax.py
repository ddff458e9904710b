"""Fine-tuning of a Flax model of Hugging Face's transformers on a pipeline, evaluated beside it.

    pip install 'transformers<5'
    python -m examples.hf_flax [--layers 4] [--hidden 32]

Versions of transformers before 5 have Flax models: a tree of parameters, and a call that takes
them. Here BERT classifies sequences by their first token, with random weights, so that nothing is
downloaded; `FlaxBertForSequenceClassification.from_pretrained(name)` is a trained one.

1. Fine-tune with AdamW and dropout on two stages and four microbatches: parameters, moments and the
   key of dropout are state and stay on the workers.
2. After each epoch count the right answers on other sequences, on the same workers.
3. Print every loss beside the one of plain JAX; the exit code is 1 if they differ.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax
import transformers
from rich.console import Console

import shardopt
from examples.losses import compare

EPOCHS, STEPS, BATCH, LENGTH, VOCAB = 2, 3, 8, 16, 64
OPTIMIZER = optax.adamw(1e-3)


def classifier(layers: int, hidden: int) -> Any:
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=4 * hidden,
        max_position_embeddings=LENGTH,
    )
    return transformers.FlaxBertForSequenceClassification(config, seed=0)


def batch(seed: int) -> dict[str, jax.Array]:
    """Token numbers, a mask of those that are no padding, and labels."""
    tokens = jax.random.randint(jax.random.key(seed), (BATCH, LENGTH), 0, VOCAB)
    lengths = 4 + tokens[:, 1] % (LENGTH - 4)
    mask = jnp.arange(LENGTH) < lengths[:, None]
    return {
        "input_ids": tokens,
        "attention_mask": mask.astype(jnp.int32),
        "labels": tokens[:, 0] % 2,
    }


class Trainer:
    """Steps of a model, as methods: they are passed to `parallelize` as they are."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def train_step(self, params: Any, state: Any, key: jax.Array, rows: Any) -> Any:
        key, mine = jax.random.split(key)

        def loss_of(params: Any) -> jax.Array:
            inputs = rows["input_ids"], rows["attention_mask"]
            logits = self.model(*inputs, params=params, dropout_rng=mine, train=True).logits
            return optax.softmax_cross_entropy_with_integer_labels(logits, rows["labels"]).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = OPTIMIZER.update(grads, state, params)
        return optax.apply_updates(params, updates), state, key, loss

    def right_answers(self, params: Any, rows: Any) -> jax.Array:
        logits = self.model(rows["input_ids"], rows["attention_mask"], params=params).logits
        return (logits.argmax(-1) == rows["labels"]).sum()


def train(step_fn: Any, evaluate: Any, model: Any) -> tuple[list[jax.Array], list[int]]:
    """Losses of all steps, and right answers after each epoch."""
    params, key = model.params, jax.random.PRNGKey(1)
    state, losses, right = OPTIMIZER.init(params), [], []
    for epoch in range(EPOCHS):
        for step in range(STEPS):
            params, state, key, loss = step_fn(params, state, key, batch(epoch * STEPS + step))
            losses.append(loss)
        right.append(int(evaluate(params, batch(100))))
    return losses, right


def main() -> int:
    parser = argparse.ArgumentParser(description="Fine-tune a Flax model of transformers.")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=32)
    args = parser.parse_args()
    console = Console()
    model = classifier(args.layers, args.hidden)
    trainer = Trainer(model)
    plain, plain_right = train(jax.jit(trainer.train_step), jax.jit(trainer.right_answers), model)

    planned_step = shardopt.parallelize(
        trainer.train_step,
        cluster="cpu-test:1x4",
        donate_argnums=(0, 1, 2),
        microbatches=4,
        stages=2,
        lazy_state=True,
        quick_compile=True,
    )
    with planned_step:
        arguments = model.params, OPTIMIZER.init(model.params), jax.random.PRNGKey(1), batch(0)
        console.print(planned_step.plan(*arguments).table())
        losses, right = train(planned_step, planned_step.beside(trainer.right_answers), model)
    console.print(f"right answers of {BATCH} after each epoch: {right}, plain JAX: {plain_right}")
    return 0 if compare(console, "fine-tuning", plain, losses) and right == plain_right else 1


if __name__ == "__main__":
    sys.exit(main())
