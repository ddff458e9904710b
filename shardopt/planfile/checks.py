"""What the parts of a plan file say of each other and of the cluster: one message an error, with
the field."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from shardopt.hardware.cluster import Cluster, HostGroup
from shardopt.mesh.mesh import AXIS_NAMES
from shardopt.mesh.sharding_text import parse_sharding
from shardopt.planfile.parts import PlanFile, PlannedStage


def plan_errors(plan: PlanFile, cluster: Cluster | None) -> Iterator[str]:
    """All errors that show without a model. `cluster` is that of the file, or what its options
    name."""
    yield from _layer_errors(plan)
    for k, stage in enumerate(plan.stages):
        yield from _shape_errors(stage, k)
        yield from _sharding_errors(stage, k)
        if cluster is not None:
            yield from _cluster_errors(stage, k, cluster)
    yield from _device_errors(plan, cluster)


def _layer_errors(plan: PlanFile) -> Iterator[str]:
    layers, count = plan.layers, None
    if layers is not None and layers.body is not None:
        used = {layer for layer, _ in layers.body}
        count = max((*used, 0)) + 1
        if layers.count not in (None, count):
            yield (
                f"field 'layers.count': expected {count}, the layers in 'layers.body', found "
                f"{layers.count}"
            )
        missing = next((layer for layer in range(count) if layer not in used), None)
        if missing is not None:
            yield (
                "field 'layers.body': expected operations of every layer, found none of "
                f"layer {missing}"
            )
        if any(layer < 0 for layer, _ in layers.arguments):
            yield "field 'layers.arguments': expected a layer for every argument, found -1"
        for name in ("prologue", "epilogue", "arguments"):
            largest = max((layer for layer, _ in getattr(layers, name)), default=0)
            if largest >= count:
                yield f"field 'layers.{name}': expected layers below {count}, found {largest}"
    elif layers is not None and layers.starts:
        count = len(layers.starts) + 1
        if layers.count not in (None, count):
            yield (
                f"field 'layers.count': expected {count}, as there are {count - 1} starts, found "
                f"{layers.count}"
            )
    elif layers is not None:
        count = layers.count
    yield from _cover_errors(plan.stages, count)


def _cover_errors(stages: tuple[PlannedStage, ...], count: int | None) -> Iterator[str]:
    """Layers of neighbouring stages must follow each other; stages without layers stand for any
    number from one on."""
    behind: int | None = 0
    for k, stage in enumerate(stages):
        if stage.layers is None:
            behind = None
            continue
        first, last = stage.layers
        if last < first:
            yield (
                f"field 'stages[{k}].layers': expected the first layer before the last, found "
                f"{first} to {last}"
            )
        elif behind is not None and first != behind:
            yield (
                f"field 'stages[{k}].layers': expected layers from {behind} on, found "
                f"{first} to {last}"
            )
        behind = last + 1
    if stages and count is not None and behind is not None and behind != count:
        yield (
            f"field 'stages[{len(stages) - 1}].layers': expected {count - 1} as the last layer, "
            f"found {behind - 1}"
        )


def _shape_errors(stage: PlannedStage, k: int) -> Iterator[str]:
    sizes = {
        name: prod(pair)
        for name, pair in (("submesh", stage.submesh), ("logical_shape", stage.logical_shape))
        if pair is not None
    }
    if stage.devices is not None:
        sizes["devices"] = len(stage.devices)
    names = [*sizes]
    for name in names[1:]:
        if sizes[name] != sizes[names[0]]:
            expected = f"{sizes[names[0]]} devices as in '{names[0]}'"
            yield f"field 'stages[{k}].{name}': expected {expected}, found {sizes[name]}"


def _cluster_errors(stage: PlannedStage, k: int, cluster: Cluster) -> Iterator[str]:
    names = [group.name for group in cluster.groups]
    if stage.group is not None and stage.group not in names:
        yield (
            f"field 'stages[{k}].group': expected one of {', '.join(names)}, found '{stage.group}'"
        )
        return
    for device in stage.devices or ():
        if device >= cluster.num_devices:
            yield (
                f"field 'stages[{k}].devices': expected devices below {cluster.num_devices}, "
                f"found {device}"
            )
            return
    groups = sorted({cluster.group_index(device) for device in stage.devices or ()})
    if len(groups) > 1:
        inside = " and ".join(f"'{names[group]}'" for group in groups)
        yield (
            f"field 'stages[{k}].devices': expected devices of one host group, found "
            f"some of {inside}"
        )
        return
    group = names.index(stage.group) if stage.group is not None else (groups or [0])[0]
    if groups and groups[0] != group:
        yield (
            f"field 'stages[{k}].devices': expected devices of host group '{stage.group}', found "
            f"'{names[groups[0]]}'"
        )
    yield from _submesh_errors(stage, k, cluster.groups[group])
    yield from _memory_errors(stage, k, cluster.groups[group])


def _submesh_errors(stage: PlannedStage, k: int, group: HostGroup) -> Iterator[str]:
    if stage.submesh is None:
        return
    hosts, width = stage.submesh
    if (
        hosts > group.hosts
        or width > group.devices_per_host
        or (hosts > 1 and width != group.devices_per_host)
    ):
        yield (
            f"field 'stages[{k}].submesh': expected a part of a host or whole hosts of {group}, "
            f"found {hosts}x{width}"
        )


def _memory_errors(stage: PlannedStage, k: int, group: HostGroup) -> Iterator[str]:
    peak = (stage.predicted or {}).get("peak_bytes")
    if isinstance(peak, int | float) and peak > group.device.memory_bytes:
        limit = f"{group.device.memory_bytes}, the memory of a device"
        yield f"field 'stages[{k}].predicted.peak_bytes': expected at most {limit}, found {peak}"


def _device_errors(plan: PlanFile, cluster: Cluster | None) -> Iterator[str]:
    owner: dict[int, int] = {}
    for k, stage in enumerate(plan.stages):
        seen: set[int] = set()
        for device in stage.devices or ():
            first = owner.setdefault(device, k)
            # Stages of one mesh.
            shared = first != k and plan.stages[first].devices == stage.devices
            if device in seen or (first != k and not shared):
                where = f"stage {first}"
                yield (
                    f"field 'stages[{k}].devices': expected every device once, found {device} "
                    f"in {where}, too"
                )
            seen.add(device)
    named = [stage.devices is not None for stage in plan.stages]
    if any(named) and not all(named):
        yield (
            f"field 'stages[{named.index(False)}]': expected devices in all stages or in none, "
            "found none here"
        )
    elif named and all(named) and cluster is not None:
        idle = next((device for device in range(cluster.num_devices) if device not in owner), None)
        if idle is not None:
            count = cluster.num_devices
            yield (
                f"field 'stages': expected all {count} devices of the cluster in use, "
                f"device {idle} is not"
            )


def _sharding_errors(stage: PlannedStage, k: int) -> Iterator[str]:
    """Axes are those of the mesh, each once. Whether they divide the values shows with the
    model."""
    if stage.shardings is None:
        return
    axes = AXIS_NAMES[: len(stage.logical_shape)] if stage.logical_shape is not None else AXIS_NAMES
    for name, text in stage.shardings.inputs.items():
        path = f"stages[{k}].shardings.inputs.{name}"
        try:
            sharding = parse_sharding(text)
        except ValueError as error:
            yield f"field '{path}': {error}"
            continue
        named = (*sharding.axes, *sharding.unreduced)
        unknown = [axis for axis in named if axis not in axes]
        if unknown:
            yield f"field '{path}': expected axes {', '.join(axes)}, found '{unknown[0]}'"
        elif len(set(named)) != len(named):
            yield f"field '{path}': expected every axis once, found {text}"
