"""The ways to run a stage that the options of the stage phase leave open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardopt.hardware.cluster import Cluster
from shardopt.options.names import Recompute
from shardopt.solve.stages.stage_problem import StageOption, stage_options
from shardopt.support.errors import UserError


def open_options(
    cluster: Cluster, submesh: str, logical_shape: str, method: str
) -> tuple[StageOption, ...]:
    """All submeshes in all logical shapes, as far as `submesh` ("1x2") and `logical_shape` leave
    them open. Raises UserError where the cluster has none."""
    allowed = [
        replace(option, method=method)
        for option in stage_options(cluster)
        if submesh in ("", str(option.submesh))
        and logical_shape in ("", "x".join(map(str, option.logical_shape)))
    ]
    if not allowed:
        wanted = " as ".join(part for part in (submesh, logical_shape) if part)
        known = ", ".join(str(option) for option in stage_options(cluster))
        raise UserError(f"cluster {cluster} has no submesh {wanted}; it has {known}")
    return tuple(allowed)


def with_recomputation(
    allowed: Sequence[StageOption], modes: Sequence[Recompute]
) -> tuple[StageOption, ...]:
    """Each option with every way to recompute, and those that have one already: a plan file asks
    for them."""
    given = [option for option in allowed if option.recompute != "none"]
    plain = [option for option in allowed if option.recompute == "none"]
    return tuple(
        dict.fromkeys(
            (*(replace(option, recompute=mode) for mode in modes for option in plain), *given)
        )
    )
