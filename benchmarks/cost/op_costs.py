"""What operations cost, against XLA's cost analysis.

    python -m benchmarks.cost.op_costs FOLDER [--match tiny] [--worst 5]

Takes every module of a folder (StableHLO text, bytecode or artifact), adds up what the planner
counts for its operations on one device, and compiles it for one host device. One line of JSON each:
FLOPs and transcendentals as a share of XLA's before and after optimization, bytes by kernels (as
the planner prices them) and bytes of unfused operations as a share of the compiled module's, and
the operations with the most bytes. Bodies of loops count once, as XLA counts them. The last line
has geometric means."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

from jaxlib.mlir import ir

from shardopt.extract.mesh_graphs import read_plain
from shardopt.extract.op_graph import sharding_rules
from shardopt.graph.op_bytes import touched_bytes
from shardopt.graph.op_graph import OpGraph
from shardopt.hardware.cluster_file import load_cluster
from shardopt.ir.context import make_context
from shardopt.ir.io import load_module
from shardopt.ir.rewriting import functions
from shardopt.mesh.mesh import Mesh
from shardopt.pipeline.manager import run_pipeline
from shardopt.runtime.devices.xla_costs import optimized_costs, unoptimized_costs
from shardopt.solve.sharding.intra_op.problem import IntraOpTables
from shardopt.solve.sharding.kernels.kernel_bytes import accessed_bytes, kernel_accesses
from shardopt.support.errors import UserError

_ENDINGS = (".mlir", ".mlirbc")
_RATIOS = ("flops", "transcendentals", "compiled_flops", "bytes", "bytes_alone")
_MESH = Mesh("one", (("x", 1),), (0,))


@dataclass(frozen=True)
class Sums:
    """What the planner counts for a module; `by_op` are bytes by kernels."""

    flops: float
    transcendentals: float
    bytes_alone: float
    by_op: Counter[str]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--match", default="", help="only modules with this in their name")
    parser.add_argument("--worst", type=int, default=5, help="how many operations to name")
    args = parser.parse_args(argv)
    rows = []
    for path in sorted(args.folder.iterdir()):
        if path.suffix in _ENDINGS and args.match in path.name:
            try:
                rows.append({"module": path.stem, **measure(path, args.worst)})
                print(json.dumps(rows[-1]), flush=True)
            except UserError as error:
                print(json.dumps({"module": path.stem, "error": str(error)}), flush=True)
    means = {name: _mean([float(str(row[name])) for row in rows]) for name in _RATIOS}
    print(json.dumps({"module": f"geometric mean of {len(rows)}", **means}))
    return 0


def measure(source: Path | bytes, worst: int) -> dict[str, object]:
    """Ratios of one module. Raises UserError for one that cannot be read."""
    with make_context() as context, ir.Location.unknown():
        module = load_module(source, context)
        run_pipeline(module, "builtin.module(shardopt-import)")
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
        with sharding_rules(module):
            graph = read_plain(next(functions(module)), _MESH).graph
    ours = count(graph)
    before = unoptimized_costs(buffer.getvalue())
    after = optimized_costs(buffer.getvalue())
    return {
        "flops": _ratio(ours.flops, before.flops),
        "transcendentals": _ratio(ours.transcendentals, before.transcendentals),
        "compiled_flops": _ratio(ours.flops, after.flops),
        "bytes": _ratio(sum(ours.by_op.values()), after.bytes),
        "bytes_alone": _ratio(ours.bytes_alone, after.bytes),
        "worst": {
            name: round(size / after.bytes, 3) for name, size in ours.by_op.most_common(worst)
        },
    }


def count(graph: OpGraph) -> Sums:
    """All operations once, unsharded."""
    fusion = IntraOpTables(graph, _MESH, load_cluster("cpu-test:1x1")).fusion
    flops = transcendentals = alone = 0.0
    by_op: Counter[str] = Counter()
    for op, accesses in zip(graph.ops, kernel_accesses(graph, fusion), strict=True):
        operands, results = (
            [graph.tensors[t].size_bytes for t in side] for side in (op.operands, op.results)
        )
        flops += op.flops
        transcendentals += op.transcendentals
        alone += touched_bytes(op.name, operands, results)
        by_op[op.name] += round(
            accessed_bytes(op.name, len(operands), (*operands, *results), accesses)
        )
    return Sums(flops, transcendentals, alone, by_op)


def _ratio(ours: float, theirs: float) -> float:
    return round(ours / theirs, 4) if theirs > 0 else 1.0


def _mean(ratios: Sequence[float]) -> float:
    positive = [ratio for ratio in ratios if ratio > 0]
    return round(exp(sum(map(log, positive)) / max(len(positive), 1)), 4)


if __name__ == "__main__":
    sys.exit(main())
