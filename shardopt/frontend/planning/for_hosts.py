"""A plan once more, for other hosts: what a run follows when its cluster has lost some."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from shardopt.dialect.cluster import read_cluster
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.cluster_file import describe
from shardopt.ir.diagnostics import DiagnosedError
from shardopt.options.plan_options import PlanOptions
from shardopt.options.table import rows
from shardopt.support.errors import UserError

# What may ask for more devices than are left, in the order in which it is given up. A submesh and
# its logical shape are one wish.
_OF_DEVICES = (("stages",), ("submesh", "logical_shape"), ("schedule",))


def cluster_of_plan(plan: Plan) -> Cluster:
    """What the plan is for."""
    with plan.loaded as modules:
        return read_cluster(modules[plan.module])


def plan_for_hosts(plan: Plan, cluster: Cluster, hosts: int) -> tuple[Plan, str]:
    """The model of a plan on so many hosts of its cluster, which has one host group, and a note.

    Its options are those of the plan, but where there is no plan with them: then the planner
    chooses what they fixed of stages, submesh and schedule, as little of it as will do, and the
    note says what and why. Raises UserError."""
    part = replace(cluster, groups=(replace(cluster.groups[0], hosts=hosts),))
    note = ""
    with tempfile.TemporaryDirectory(prefix="shardopt-replan-") as folder:
        file = Path(folder) / "cluster.json"
        file.write_text(json.dumps(describe(part)), encoding="utf-8")
        asked = replace(plan.options, cluster=str(file), plan="")
        for given_up, options in _relaxed(asked):
            try:
                return make_plan(plan.original, options), note and f"without {given_up}: {note}"
            except UserError as error:
                note, failed = note or _cause(error), error
    raise failed


def _relaxed(options: PlanOptions) -> Iterator[tuple[str, PlanOptions]]:
    """The options, and then without what they ask of devices: first without one wish, then two."""
    by_field = {row.field: row for row in rows(PlanOptions)}
    wishes = [
        fixed
        for names in _OF_DEVICES
        if (fixed := [n for n in names if getattr(options, n) != by_field[n].default])
    ]
    for count in range(len(wishes) + 1):
        for without in combinations(wishes, count):
            fields = [field for wish in without for field in wish]
            flags = (f"{by_field[field].flag} {getattr(options, field)}" for field in fields)
            free: dict[str, Any] = {field: by_field[field].default for field in fields}
            yield " ".join(flags), replace(options, **free)


def _cause(error: UserError) -> str:
    """In one line, without a place in the model, which is as it was."""
    if isinstance(error, DiagnosedError):
        return error.diagnostic.message
    return str(error)
