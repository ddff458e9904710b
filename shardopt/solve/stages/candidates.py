"""Candidate stages: which intervals of layers on which configs some exact cover of devices and
layers can contain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shardopt.graph.op_graph import SHARED
from shardopt.hardware.cluster import Cluster
from shardopt.mesh.mesh import AXIS_NAMES, Mesh, matching_axes
from shardopt.solve.presets.base import InputKinds
from shardopt.solve.stages.cut_transfers import CutTransfers, cut_transfers
from shardopt.solve.stages.fewer_configs import number_of_candidates
from shardopt.solve.stages.stage_problem import ModelHomes, StageConfig
from shardopt.solve.stages.step_graph import StepGraph
from shardopt.support.errors import UserError

# A number of eight bytes in each of a dozen arrays: more would not fit the memory of a usual
# machine.
MOST_CANDIDATES = 100_000_000
# The devices of all submeshes together, each number of devices once.
MOST_LISTED_DEVICES = 20_000_000


@dataclass(frozen=True, eq=False)
class CandidateProblem:
    """A training step by layers, and where its stages may run.

    `num_stages` is None where the planner chooses it. `memory_limit_bytes`: what a device of each
    host group may hold, None for any amount; empty for any amount in all groups. `input_kinds` is
    what configs with a preset as their method need to know of the inputs of the step. `allowed`
    leaves candidates out that a plan file has no use for. With several `stages_per_mesh` every
    device is in so many stages, and `memory_limit_bytes` is the share of each. `host_limit_bytes`
    is what the hosts of each group may hold for a device, as `memory_limit_bytes`. `weight_ages`:
    how many older versions of its weights each of so many stages keeps, where the schedule wants
    any. `homes`: on which meshes so many stages are, where they share some."""

    step: StepGraph
    num_layers: int
    cluster: Cluster
    configs: tuple[StageConfig, ...]
    num_microbatches: int
    num_stages: int | None = None
    memory_limit_bytes: tuple[int | None, ...] = ()
    input_kinds: InputKinds = field(default_factory=InputKinds)
    allowed: Callable[[int, int, StageConfig], bool] | None = None
    stages_per_mesh: int = 1
    host_limit_bytes: tuple[int | None, ...] = ()
    weight_ages: Callable[[int], tuple[int, ...]] | None = None
    homes: ModelHomes | None = None

    @property
    def stage_devices(self) -> tuple[int, ...]:
        """Devices of every host group, each as often as stages use it."""
        return tuple(self.stages_per_mesh * group.num_devices for group in self.cluster.groups)

    def transfers(self) -> CutTransfers:
        """What crosses the cuts in a microbatch."""
        step = self.step
        layers = [layer if step.in_body(op) else SHARED for op, layer in enumerate(step.op_layer)]
        return cut_transfers(step.graph, layers, self.num_layers, self.cluster, step.repeated)

    def mesh(self, config: StageConfig) -> Mesh:
        """The logical mesh of a config on the first devices of its host group."""
        place = config.group, config.num_devices
        if place not in self._devices:
            first = self.cluster.first_devices[config.group]
            self._devices[place] = tuple(range(first, first + config.num_devices))
        return candidate_mesh(config, self._devices[place])

    @cached_property
    def _devices(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """Of submeshes that were looked at, by host group and number: logical shapes share them."""
        return {}

    def candidates(self) -> np.ndarray:
        """Bool `[L + 1, L + 1, C]` by first layer, layer after the last and config."""
        layers, most = self.num_layers, self.num_stages or self.num_layers
        covered = self._covers(most)
        rests = [self._rest(config) for config in self.configs]
        lies = self._on_meshes_of_islands()
        is_candidate = np.zeros((layers + 1, layers + 1, len(self.configs)), dtype=bool)
        for i in range(layers):
            for j in range(i + 1, layers + 1):
                # The layers before i need a stage if there are any, and make at most one each; so
                # do those behind.
                fewest, largest = (i > 0) + (j < layers), i + layers - j
                others = range(fewest, min(largest, most - 1) + 1)
                if self.num_stages is not None:
                    others = range(most - 1, most) if fewest <= most - 1 <= largest else range(0)
                # Many configs leave the same devices to the others, so each rest is looked up once.
                fits = {rest: any(rest in covered[k] for k in others) for rest in set(rests)}
                is_candidate[i, j] = [fits[rest] for rest in rests]
                is_candidate[i, j] &= lies[i:j].all(axis=0)
                if self.allowed is not None:
                    is_candidate[i, j] &= [self.allowed(i, j, config) for config in self.configs]
        return is_candidate

    def _on_meshes_of_islands(self) -> np.ndarray:
        """Bool `[L, C]`: the configs whose mesh has the axes of all islands of a layer."""
        lies = np.ones((self.num_layers, len(self.configs)), dtype=bool)
        found = {
            (op.island.axes, layer)
            for op, layer in zip(self.step.graph.ops, self.step.op_layer, strict=True)
            if op.island is not None and layer != SHARED
        }
        meshes = list(map(self.mesh, self.configs)) if found else []
        matching = {
            axes: [matching_axes(axes, mesh) is not None for mesh in meshes]
            for axes in {axes for axes, _ in found}
        }
        for axes, layer in found:
            lies[layer] &= matching[axes]
        return lies

    def _covers(self, most: int) -> list[set[tuple[int, ...]]]:
        """`[k]`: how many devices of every host group k stages can occupy together."""
        available = self.stage_devices
        sizes = sorted({(config.group, config.num_devices) for config in self.configs})
        covered = [{(0,) * len(available)}]
        for _ in range(most):
            grown = {
                (*taken[:group], taken[group] + size, *taken[group + 1 :])
                for taken in covered[-1]
                for group, size in sizes
                if taken[group] + size <= available[group]
            }
            covered.append(grown)
        return covered

    def _rest(self, config: StageConfig) -> tuple[int, ...]:
        """Devices of every host group that a stage leaves to the others."""
        available = enumerate(self.stage_devices)
        return tuple(
            count - config.num_devices * (index == config.group) for index, count in available
        )


def check_number(num_layers: int, configs: Sequence[StageConfig]) -> None:
    """Raises UserError where there are more submeshes than can be looked at, or more intervals of
    layers on configs. A cluster of hundreds of hosts has thousands of logical shapes."""
    sizes = {(config.group, config.num_devices) for config in configs}
    listed, num_configs = sum(size for _, size in sizes), len(configs)
    if listed > MOST_LISTED_DEVICES:
        raise UserError(
            f"expected at most {MOST_LISTED_DEVICES:,} devices in all submeshes, found {listed:,} "
            f"in {len(sizes):,}; submesh allows fewer"
        )
    number = number_of_candidates(num_layers, configs)
    if number > MOST_CANDIDATES:
        raise UserError(
            f"expected at most {MOST_CANDIDATES:,} candidate stages, found {number:,}, of "
            f"{num_layers} layers on {num_configs:,} combinations of submesh, logical shape and "
            "recomputation; submesh, logical-shape or recompute allow fewer, and so do fewer layers"
        )


def candidate_mesh(config: StageConfig, devices: Sequence[int], name: str = "candidate") -> Mesh:
    """The logical mesh of a config on some devices."""
    return Mesh(name, tuple(zip(AXIS_NAMES, config.logical_shape, strict=False)), tuple(devices))
