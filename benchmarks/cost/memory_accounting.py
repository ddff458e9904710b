"""Predicted peak memory against the compiled program, and what a budget changes.

    python -m benchmarks.cost.memory_accounting MODEL.mlirbc … --mesh 1 --mesh 2x2 --budget 0.8

Plans every model (StableHLO text, bytecode or artifact) for the mesh, once freely and once for each
budget, a share of the free plan's predicted peak, and compiles it for host devices. One line of
JSON each: predicted bytes, bytes of the compiled program (arguments + results + temporaries -
aliases), their ratio, predicted seconds, recomputed values."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxlib.mlir import ir

from shardopt.dialect.cluster import write_cluster
from shardopt.forms.sharded_form import CostSummary, read_cost
from shardopt.hardware.cluster_file import load_cluster
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions
from shardopt.mesh.mesh import parse_mesh
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.devices.compiled import compiled_bytes
from shardopt.support.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument(
        "--mesh", action="append", help="shape of the mesh, 1 by default; may be repeated"
    )
    parser.add_argument("--cluster", default="cpu-test:1x4", help="cluster file or preset")
    parser.add_argument(
        "--budget", action="append", type=float, default=[], help="share of the free peak"
    )
    args = parser.parse_args(argv)
    for path in args.models:
        for mesh in args.mesh or ["1"]:
            for row in measure(path, mesh, args.cluster, args.budget):
                print(json.dumps(row), flush=True)
    return 0


def measure(
    path: Path, mesh: str, cluster: str, budgets: Sequence[float]
) -> Iterator[dict[str, object]]:
    free = planned(path, mesh, cluster, "")
    yield free
    for share in budgets:
        budget = str(int(share * int(str(free["predicted_bytes"]))))
        try:
            yield planned(path, mesh, cluster, budget)
        except UserError as error:
            yield {"model": path.stem, "mesh": mesh, "budget": budget, "error": str(error)}


def planned(path: Path, mesh: str, cluster: str, budget: str) -> dict[str, object]:
    """Plan and compile one model. Raises UserError when the budget is too small."""
    predicted, compiled, recomputed = peaks(path, mesh, cluster, budget)
    return {
        "model": path.stem,
        "mesh": mesh,
        "budget": budget,
        "predicted_bytes": predicted.peak_bytes,
        "compiled_bytes": compiled,
        "ratio": round(predicted.peak_bytes / compiled, 3),
        "predicted_seconds": predicted.seconds,
        "recomputed": recomputed,
    }


def peaks(
    source: Path | bytes, mesh: str, cluster: str, budget: str = ""
) -> tuple[CostSummary, int, int]:
    """The predicted cost of a model that is planned for a mesh, the bytes of the compiled program,
    and how many values are computed again for the budget."""
    with make_context() as context, ir.Location.unknown():
        module = load_module(source, context)
        run_pipeline(module, "builtin.module(shardopt-import)")
        write_cluster(module, load_cluster(cluster))
        limit = f" memory-budget={budget}" if budget else ""
        result = run_pipeline(module, f"builtin.module(shardopt-shard{{mesh={mesh}{limit}}})")
        [main_function] = functions(module)
        predicted = read_cost(main_function)
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
    compiled = compiled_bytes(buffer.getvalue(), parse_mesh(mesh).size, shardy=False)
    statistic = ("shardopt-choose-shardings", "mesh: rematerialized values")
    return predicted, compiled, result.statistics.get(statistic, 0)


if __name__ == "__main__":
    sys.exit(main())
