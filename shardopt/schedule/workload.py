"""What is to be scheduled: tasks, what they wait for, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardopt.hardware.sharing import Sharing
from shardopt.schedule.graph import StageGraph
from shardopt.schedule.memory import LiveBytes
from shardopt.schedule.tasks import StageTask


@dataclass(frozen=True)
class Workload:
    """What is to be scheduled: the tasks of `graph` for every microbatch, stage s on mesh
    `stage_to_mesh[s]`.

    `transfer_seconds` has one entry for each edge of `graph`; `activation_bytes` says what a task
    allocates until its last reader of the same stage has run; `memory_bytes` what activations may
    take, by mesh (None: no limit). `edge_links`, `sharing` and `live` are those of the simulator;
    the list scheduler does not see them."""

    graph: StageGraph
    stage_to_mesh: tuple[int, ...]
    num_microbatches: int
    task_seconds: Mapping[StageTask, float]
    transfer_seconds: tuple[float, ...]
    activation_bytes: Mapping[StageTask, int] = field(default_factory=dict)
    memory_bytes: tuple[int, ...] | None = None
    edge_links: tuple[tuple[int, ...], ...] = ()
    sharing: Sharing | None = None
    live: tuple[LiveBytes, ...] | None = None

    @property
    def num_meshes(self) -> int:
        return 1 + max(self.stage_to_mesh)
