"""Baselines that run the stage DP over fewer configs. They differ only in what a stage may be.

* `dp`: no restriction. It is the planner itself, and stands here as the one to compare with.
* `inter-only`: a pipeline and nothing else, each stage on one device.
* `intra-only`: no pipeline, one stage on all devices.
* `pp-dp`: a pipeline with data parallelism inside of the stages (PipeDream: Narayanan et al.,
  SOSP'19, arXiv 1806.03377; DAPPLE: Fan et al., PPoPP'21, arXiv 2007.01045).
* `piper`: contiguous stages, each with a degree of data and one of tensor parallelism, with or
  without recomputation (Piper: Tarnawski et al., NeurIPS'21).
* `deepspeed`: no pipeline; experts over some devices, ZeRO at one of its stages for all else
  (DeepSpeed-MoE: Rajbhandari et al., arXiv 2201.05596). Alpa (section 8.1) compares with it on
  mixtures of experts.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardopt.solve.stages.baselines.grid import data_or_tensor, is_flat, is_hosts_by_devices
from shardopt.solve.stages.baselines.planner import BaselinePlanner, PlannerInput, with_methods
from shardopt.solve.stages.dp.stage_dp import solve_stages
from shardopt.solve.stages.stage_problem import StageConfig, StageProblem, StageSolution

# The stages of ZeRO, 0 first, without and with experts over the last axis.
_ZERO = ("data", "zero1", "zero2", "zero3")
_EXPERT_ZERO = ("expert", "expert-zero1", "expert-zero2", "expert-zero3")


def _solve(problem: StageProblem, request: PlannerInput) -> StageSolution:
    return solve_stages(problem, request.num_stages)


def _one_device(configs: Iterable[StageConfig]) -> tuple[StageConfig, ...]:
    return tuple(config for config in configs if config.num_devices == 1)


def _data(configs: Iterable[StageConfig]) -> tuple[StageConfig, ...]:
    """One axis, or hosts by devices: reducing a gradient inside hosts first is often faster."""
    return with_methods(
        configs, lambda config: ["data"] * (is_flat(config) or is_hosts_by_devices(config))
    )


def _data_and_tensor(configs: Iterable[StageConfig]) -> tuple[StageConfig, ...]:
    return with_methods(configs, data_or_tensor)


def _experts_and_zero(configs: Iterable[StageConfig]) -> tuple[StageConfig, ...]:
    """(dp, ep): experts over the last axis; one axis, or hosts by devices, also without experts."""
    return with_methods(
        configs,
        lambda config: (*_ZERO * (is_flat(config) or is_hosts_by_devices(config)), *_EXPERT_ZERO),
    )


DP = BaselinePlanner(_solve, by_dp=True)
INTER_ONLY = BaselinePlanner(_solve, _one_device, by_dp=True)
INTRA_ONLY = BaselinePlanner(_solve, one_stage=True, by_dp=True)
PP_DP = BaselinePlanner(_solve, _data, by_dp=True)
PIPER = BaselinePlanner(_solve, _data_and_tensor, by_dp=True)
DEEPSPEED = BaselinePlanner(_solve, _experts_and_zero, one_stage=True, by_dp=True)
