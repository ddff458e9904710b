"""Where the actors of a run go in a Ray cluster: a bundle of a placement group for each host of the
plan.

Parts of several meshes on one host of the plan share a bundle, and so a node; different hosts are
on different nodes if the cluster has enough of them, and together on few otherwise. So a run that
starts again after a node is lost takes what is left, or a node that no host had before."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from shardopt.runtime.program.hosts import Host
from shardopt.support.errors import UserError

# CPU devices share their machine, and meshes may outnumber its cores; but a bundle must ask for
# something.
_CPU_SHARE = 0.001
_PATIENCE_SECONDS = 60.0
_ANSWER_SECONDS = 2.0  # for a node to take a connection
_LOOK_SECONDS = 0.2


class RayPlacement:
    """A placement group for some workers; with `gpus`, of a GPU for each of their devices."""

    def __init__(
        self, ray: Any, workers: Sequence[Host], *, gpus: bool, patience: float = _PATIENCE_SECONDS
    ) -> None:
        """Raises UserError when the cluster has no room for so many seconds."""
        from ray.util.placement_group import placement_group

        self._gpus = gpus
        homes = [_home(worker) for worker in workers]
        self._bundle = {home: number for number, home in enumerate(dict.fromkeys(homes))}
        bundles: list[dict[str, float]] = [{} for _ in self._bundle]
        for worker, home in zip(workers, homes, strict=True):
            for resource, amount in self._resources(worker).items():
                bundle = bundles[self._bundle[home]]
                bundle[resource] = bundle.get(resource, 0) + amount
        nodes = len(living_nodes(ray, patience))
        strategy = "STRICT_SPREAD" if len(bundles) <= nodes else "PACK"
        self._group = placement_group(bundles, strategy=strategy)
        if not self._group.wait(patience):
            self.remove()
            raise UserError(
                f"the Ray cluster has no room: expected {len(bundles)} bundles {bundles}, "
                f"found {ray.available_resources()} on {nodes} nodes"
            )

    def options(self, worker: Host) -> dict[str, Any]:
        """Of the actor of a worker."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        number = self._bundle[_home(worker)]
        resources = self._resources(worker)
        return {
            "num_cpus": resources["CPU"],
            "num_gpus": resources.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=number
            ),
        }

    def remove(self) -> None:
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(self._group)

    def _resources(self, worker: Host) -> dict[str, float]:
        return {"CPU": _CPU_SHARE, "GPU": len(worker.shards)} if self._gpus else {"CPU": _CPU_SHARE}


def living_nodes(ray: Any, patience: float = _PATIENCE_SECONDS) -> list[dict[str, Any]]:
    """The nodes that there are, when Ray knows of those that are gone. It takes some seconds to
    notice, and until then would place actors there, which never start."""
    limit = time.monotonic() + patience
    while True:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        if all(map(_answers, nodes)) or time.monotonic() > limit:
            return nodes
        time.sleep(_LOOK_SECONDS)


def _answers(node: Mapping[str, Any]) -> bool:
    """Whether the process of Ray on the node takes connections, as every driver makes one to it."""
    address = (node["NodeManagerAddress"], node["NodeManagerPort"])
    try:
        socket.create_connection(address, timeout=_ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def _home(worker: Host) -> int | str:
    """What workers of one bundle have in common; those of no known host may go anywhere."""
    return worker.name if worker.machine is None else worker.machine
