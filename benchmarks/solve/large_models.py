"""How long training steps of public sizes take from StableHLO to a plan: LLaMA-3.1 8B and
DeepSeek-V3.

    python -m benchmarks.solve.large_models [--models llama-8b,deepseek-v3] [--meshes 2x4,8x8]
        [--cluster h100-sxm] [--gap 0.005] [--memory-fraction 0] [--json results.json]
        [--markdown table.md]

Steps are those of `shardopt.models`, with AdamW in bfloat16 and recomputed attention; only their
shapes exist. Each goes through `shardopt-intra` on each mesh, in a process of its own
(`benchmarks.solve.intra_op_speed`, which says what the columns are). Without a memory fraction
memory is no matter: DeepSeek-V3's weights with AdamW's state need 64 devices of 168 GB."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks.solve.intra_op_speed import markdown, measured
from shardopt.models.build import bytecode
from shardopt.models.computing import Computing
from shardopt.models.specs import DeepseekSpec, LlamaSpec, Spec

MODELS: dict[str, Spec] = {
    "llama-8b": LlamaSpec(4096, 32, 32, 8, 14336, sequence=4096, vocab=128256, batch=64),
    "deepseek-v3": DeepseekSpec(batch=64),
}
# Without it, no device holds the weights of attention.
_HOW = Computing(recomputed="attention")


def main() -> int:
    parser = argparse.ArgumentParser(description="Time the sharding of large models.")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--meshes", default="2x4,8x8")
    parser.add_argument("--cluster", default="h100-sxm")
    parser.add_argument("--gap", type=float, default=0.005)
    parser.add_argument("--memory-fraction", type=float, default=0.0)
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    unknown = sorted(set(args.models.split(",")) - MODELS.keys())
    if unknown:
        parser.error(f"expected models among {', '.join(MODELS)}, found {', '.join(unknown)}")
    options = f"gap={args.gap} memory-fraction={args.memory_fraction}"
    console, rows = Console(width=200), []
    with TemporaryDirectory() as folder:
        for name in args.models.split(","):
            path = Path(folder) / f"{name}.mlirbc"
            path.write_bytes(bytecode(MODELS[name], "bf16", how=_HOW))
            for mesh in args.meshes.split(","):
                rows.append(measured(path, mesh, args.cluster, args.time_limit, options))
                console.print(markdown(rows[-1:]).splitlines()[-1], markup=False)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
