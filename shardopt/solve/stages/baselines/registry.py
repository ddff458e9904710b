"""The values of `inter-op` and the planners that they stand for, loaded when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, cast, get_args

from shardopt.options.names import InterOp, StagePlanner
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.solve.stages.baselines.planner import BaselinePlanner

_HOME = "shardopt.solve.stages.baselines"
_PLANNERS: Mapping[StagePlanner, tuple[str, str]] = {
    "dp": ("restricted_dp", "DP"),
    "inter-only": ("restricted_dp", "INTER_ONLY"),
    "intra-only": ("restricted_dp", "INTRA_ONLY"),
    "pp-dp": ("restricted_dp", "PP_DP"),
    "megatron": ("equal_layers", "MEGATRON"),
    "deepspeed": ("restricted_dp", "DEEPSPEED"),
    "piper": ("restricted_dp", "PIPER"),
    "mcmc": ("mcmc", "MCMC"),
    "equal-layer": ("equal_layers", "EQUAL_LAYER"),
}
PLANNER_NAMES = tuple(_PLANNERS)
INTER_OP: tuple[str, ...] = get_args(InterOp)


def find_planner(name: str) -> BaselinePlanner:
    """Raises UserError for an unknown name."""
    if name not in _PLANNERS:
        raise UserError(
            f"unknown inter-op planner '{name}'; expected one of {', '.join(_PLANNERS)}"
        )
    module, attribute = _PLANNERS[cast("StagePlanner", name)]
    return cast("BaselinePlanner", getattr(import_module(f"{_HOME}.{module}"), attribute))
