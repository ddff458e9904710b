"""A model of the paper as a StableHLO module: one whole training step, without any weight in
memory.

    python -m benchmarks.alpa.models gpt-39b -o gpt39b.mlirbc

Text if the name ends in `.mlir`, MLIR bytecode otherwise. The state comes first and is donated; the
batch comes last. `--list` names the models."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.alpa.specs import CASES, TINY, find_spec


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
    from shardopt.models.build import bytecode

    spec, text = find_spec(args.model, args.batch), args.output.suffix == ".mlir"
    args.output.write_bytes(bytecode(spec, "f32" if args.float32 else None, text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
