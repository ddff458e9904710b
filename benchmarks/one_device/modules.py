"""Training steps that fit one accelerator, as files of StableHLO.

    python -m benchmarks.one_device.modules FOLDER [--only llama]

GPT, mixtures of experts and Wide-ResNets are those of the Alpa paper (arXiv 2201.12023, tables 4 to
6) with small batches. The other decoders have what those lack: grouped keys and values, gated feed
forward parts, latent attention, tied embeddings, long sequences, wide vocabularies. Functions in
plain JAX (`benchmarks.one_device.functions`) are written, too."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.one_device.functions import FUNCTIONS, bytecode_of
from shardopt.models.build import bytecode
from shardopt.models.specs import DeepseekSpec, GptSpec, LlamaSpec, MoeSpec, ResnetSpec, Spec

_GPT_350M, _MOE_380M = GptSpec(1024, 24, 16, batch=8), MoeSpec(768, 8, 8, batch=8)
_WRESNET_250M = ResnetSpec(50, 160, 2, batch=32)

# Name -> (model with its batch, element type in which it computes).
MODULES: dict[str, tuple[Spec, str]] = {
    "alpa-gpt-350m-b8": (_GPT_350M, "f16"),
    "alpa-gpt-350m-b16": (replace(_GPT_350M, batch=16), "f16"),
    "alpa-gpt-350m-b8-f32": (_GPT_350M, "f32"),
    "alpa-gpt-1.3b-b8": (GptSpec(2048, 24, 32, batch=8), "f16"),
    "alpa-moe-380m-b8": (_MOE_380M, "f16"),
    "alpa-moe-380m-b16": (replace(_MOE_380M, batch=16), "f16"),
    "alpa-moe-380m-b8-f32": (_MOE_380M, "f32"),
    "alpa-moe-690m-b16": (MoeSpec(768, 8, 16, batch=16), "f16"),
    "alpa-wresnet-250m-b32": (_WRESNET_250M, "f32"),
    "alpa-wresnet-250m-b64": (replace(_WRESNET_250M, batch=64), "f32"),
    "alpa-wresnet-1b-b32": (ResnetSpec(50, 320, 2, batch=32), "f32"),
    "gpt-760m-tied-b4": (GptSpec(1536, 24, 16, sequence=2048, batch=4, tied=True), "bf16"),
    "llama-160m-b8": (LlamaSpec(768, 12, 12, 4, 2048, 2048, 32000, 8), "bf16"),
    "llama-1b-b2": (LlamaSpec(2048, 16, 32, 8, 8192, 2048, 128256, 2), "bf16"),
    "llama-3b-b1": (LlamaSpec(3072, 28, 24, 8, 8192, 2048, 128256, 1), "bf16"),
    "deepseek-700m-b4": (
        DeepseekSpec(
            hidden=1024,
            layers=8,
            dense_layers=1,
            heads=16,
            head=64,
            rotary=32,
            query_rank=384,
            latent_rank=256,
            ffn=4096,
            experts=16,
            active=2,
            expert_ffn=1024,
            sequence=2048,
            vocab=32000,
            batch=4,
            group=2048,
        ),
        "bf16",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="modules whose name contains this")
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    writers = {name: partial(bytecode, spec, dtype) for name, (spec, dtype) in MODULES.items()}
    writers |= {name: partial(bytecode_of, name) for name in FUNCTIONS}
    for name, write in writers.items():
        if args.only in name:
            (args.folder / f"{name}.mlirbc").write_bytes(write())
    return 0


if __name__ == "__main__":
    sys.exit(main())
