"""What the user demands, read from annotations and the constraints file, with a word on what cannot
be obeyed."""

from __future__ import annotations

from jaxlib.mlir import ir

from shardopt.mesh.mesh import Mesh
from shardopt.passes.base import PassContext
from shardopt.passes.sharding.demands.user_constraints import Demands, read_demands
from shardopt.passes.sharding.reports.remarks import report_lost
from shardopt.planfile.constraint_file import load_constraints


def obeyed_demands(
    module: ir.Module,
    main: ir.Operation,
    mesh: Mesh | None,
    file: str,
    annotations: str,
    pm: PassContext,
    *,
    padded: bool,
) -> Demands:
    """Of a plain module on `mesh`, or without one of a staged module. `file` may be empty;
    `annotations` is the option of that name; unless `padded`, tiles must be even, as those
    that go to another mesh always must. Raises UserError
    and DemandError, and PassFailure for a lost annotation that is required."""
    entries = load_constraints(file) if file else ()
    demands = read_demands(
        module, main, mesh, entries, obey_annotations=annotations != "drop", padded=padded
    )
    report_lost(demands.lost, annotations, pm)
    pm.statistic("annotations obeyed", demands.obeyed)
    return demands
