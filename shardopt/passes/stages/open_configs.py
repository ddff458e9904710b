"""The configs of stages that the options of the stage phase leave open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardopt.hardware.cluster import Cluster
from shardopt.solve.stages.stage_problem import StageConfig, stage_configs
from shardopt.support.errors import UserError


def open_configs(
    cluster: Cluster, submesh: str, logical_shape: str, method: str
) -> tuple[StageConfig, ...]:
    """All submeshes in all logical shapes, as far as `submesh` ("1x2") and `logical_shape` leave
    them open. Raises UserError where the cluster has none."""
    allowed = [
        replace(config, method=method)
        for config in stage_configs(cluster)
        if submesh in ("", str(config.submesh))
        and logical_shape in ("", "x".join(map(str, config.logical_shape)))
    ]
    if not allowed:
        shape = f"logical shape {logical_shape}" if logical_shape else ""
        named = " of ".join(part for part in (f"submesh {submesh}".rstrip(), shape) if part)
        known = ", ".join(str(config) for config in stage_configs(cluster))
        raise UserError(f"cluster {cluster} has no {named}; it has {known}")
    return tuple(allowed)


def with_recomputation(
    allowed: Sequence[StageConfig], modes: Sequence[str]
) -> tuple[StageConfig, ...]:
    """Each config with every mode of recomputation, and those that have one already: a plan file
    asks for them."""
    from_file = [config for config in allowed if config.recompute != "none"]
    plain = [config for config in allowed if config.recompute == "none"]
    return tuple(
        dict.fromkeys(
            (*(replace(config, recompute=mode) for mode in modes for config in plain), *from_file)
        )
    )


def with_offload(
    allowed: Sequence[StageConfig], modes: Sequence[str], cluster: Cluster
) -> tuple[StageConfig, ...]:
    """Each config with every mode of offloading, as far as its host group says how fast that is.
    Raises UserError where none is left."""
    linked = [group.host_link is not None for group in cluster.groups]
    configs = tuple(
        replace(config, offload=mode)
        for mode in modes
        for config in allowed
        if mode == "none" or linked[config.group]
    )
    if allowed and not configs:
        names = ", ".join(f"'{group.name}'" for group in cluster.groups)
        raise UserError(
            f"option offload: expected field 'host_link' of a host group of {names} "
            "(docs/guide/cluster.md), found none"
        )
    return configs
