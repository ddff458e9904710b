"""The devices that a plan is for."""

from __future__ import annotations

from shardopt.hardware.cluster import Cluster
from shardopt.hardware.cluster_file import load_cluster
from shardopt.planfile.parts import PlanFile
from shardopt.support.errors import UserError


def cluster_for(named: str, plan_file: PlanFile) -> Cluster:
    """The cluster of an option, else that of a plan file. Raises UserError where neither says
    one."""
    if named:
        return load_cluster(named)
    if plan_file.cluster is None:
        raise UserError("expected option cluster=<file or preset[:HxD]>, found none")
    return plan_file.cluster
