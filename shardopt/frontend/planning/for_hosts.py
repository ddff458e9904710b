"""A plan once more, for other hosts: what a run follows when its cluster has lost some."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

from shardopt.dialect.cluster import read_cluster
from shardopt.frontend.planning.make_plan import make_plan
from shardopt.frontend.plans.plan import Plan
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.cluster_file import describe


def cluster_of_plan(plan: Plan) -> Cluster:
    """What the plan is for."""
    with plan.loaded as modules:
        return read_cluster(modules[plan.module])


def plan_for_hosts(plan: Plan, cluster: Cluster, hosts: int) -> Plan:
    """The model of a plan, with its options, on so many hosts of its cluster, which has one host
    group. Raises UserError."""
    part = replace(cluster, groups=(replace(cluster.groups[0], hosts=hosts),))
    with tempfile.TemporaryDirectory(prefix="shardopt-replan-") as folder:
        file = Path(folder) / "cluster.json"
        file.write_text(json.dumps(describe(part)), encoding="utf-8")
        return make_plan(plan.original, replace(plan.options, cluster=str(file), plan=""))
