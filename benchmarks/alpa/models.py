"""A model of the paper as a StableHLO module: one whole training step, without any weight in
memory.

    python -m benchmarks.alpa.models gpt-39b -o gpt39b.mlirbc

Text if the name ends in `.mlir`, MLIR bytecode otherwise. The state comes first and is donated; the
batch comes last. `--list` names the models."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.alpa.specs import CASES, TINY, GptSpec, MoeSpec, Spec, find_spec

if TYPE_CHECKING:
    from benchmarks.alpa.train_step import Model


def build(spec: Spec) -> Model:
    """The model of any family, with the optimizer of the artifact."""
    from benchmarks.alpa import gpt, moe, wresnet
    from benchmarks.alpa.optimizers import adafactor, adamw, momentum
    from benchmarks.alpa.train_step import Model
    from benchmarks.alpa.transformer import token_batch

    if isinstance(spec, GptSpec):
        return Model(
            gpt.weights(spec), token_batch(spec.batch, spec.sequence), gpt.loss, adamw(), mixed=True
        )
    if isinstance(spec, MoeSpec):
        inputs, loss = token_batch(spec.batch, spec.sequence), partial(moe.loss, spec=spec)
        return Model(moe.weights(spec), inputs, loss, adafactor(), mixed=True)
    return Model(
        wresnet.weights(spec), wresnet.image_batch(spec), wresnet.loss, momentum(), mixed=False
    )


def bytecode(spec: Spec, text: bool = False, float32: bool = False) -> bytes:
    """The step as MLIR bytecode, or as text; in float32 throughout if asked."""
    import io

    import jax

    from benchmarks.alpa.train_step import abstract_state, make_step

    model = build(spec)
    if float32:
        model = replace(model, mixed=False)
    traced = jax.jit(make_step(model), donate_argnums=0).trace(abstract_state(model), model.batch)
    module = traced.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
    if text:
        return str(module).encode()
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", nargs="?", choices=[*(case.name for case in CASES), *TINY], metavar="MODEL"
    )
    parser.add_argument("-o", "--output", type=Path, help="file to write")
    parser.add_argument("--batch", type=int, help="another global batch than the published one")
    parser.add_argument(
        "--float32", action="store_true", help="compute in float32 where the paper has float16"
    )
    parser.add_argument(
        "--list", action="store_true", help="names of the models, with their parameters"
    )
    args = parser.parse_args(argv)
    if args.list or args.model is None or args.output is None:
        for case in CASES:
            print(f"{case.name:14} {case.devices:3} devices")
        return 0 if args.list else 2
    spec, text = find_spec(args.model, args.batch), args.output.suffix == ".mlir"
    args.output.write_bytes(bytecode(spec, text, args.float32))
    return 0


if __name__ == "__main__":
    sys.exit(main())
