"""`shardopt run --replan`: what a run that starts again follows where the cluster has lost hosts,
or has them again: a plan for as many as there are, of the model, with the options, of the first."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from shardopt.frontend.planning.for_hosts import cluster_of_plan, plan_for_hosts
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.frontend.plans.plan import Plan
    from shardopt.runtime.program.instructions import Program


class Replanning:
    """`plan` and `program` are what the run follows now. `count_hosts` says how many hosts with so
    many devices there are; more than the first plan is for are spare. Raises UserError for a
    cluster of several host groups, of which it is not said which one shrinks."""

    def __init__(self, plan: Plan, program: Program, count_hosts: Callable[[int], int]) -> None:
        self._cluster = cluster_of_plan(plan)
        if len(self._cluster.groups) > 1:
            found = len(self._cluster.groups)
            raise UserError(f"--replan: expected a cluster of one host group, found {found}")
        self._count_hosts = count_hosts
        self._hosts = self._cluster.groups[0].hosts
        # By number of hosts: a cluster that grows again has had its plan.
        self._known = {self._hosts: (plan, program)}

    @property
    def plan(self) -> Plan:
        return self._known[self._hosts][0]

    @property
    def program(self) -> Program:
        return self._known[self._hosts][1]

    def look(self) -> bool:
        """Whether there are other hosts now than the plan is for; then there is one for those.
        Raises UserError where the model has no plan for what is left."""
        whole = self._cluster.groups[0]
        hosts = min(self._count_hosts(whole.devices_per_host), whole.hosts)
        if hosts == self._hosts:
            return False
        if hosts < 1:
            raise UserError(
                f"--replan: no host with {whole.devices_per_host} devices is left in the cluster"
            )
        print(f"note: planning for {hosts} of {whole.hosts} hosts", file=sys.stderr)
        if hosts not in self._known:
            first, _ = self._known[whole.hosts]
            plan, note = plan_for_hosts(first, self._cluster, hosts)
            if note:
                print(f"note: {note}", file=sys.stderr)
            self._known[hosts] = (plan, plan.program())
        self._hosts = hosts
        return True
