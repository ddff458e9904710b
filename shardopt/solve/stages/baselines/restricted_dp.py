"""Baselines that are the stage DP over fewer options: what a stage may be is all that they differ
in.

* `dp`: no restriction. It is the planner itself, and stands here as the one to compare with.
* `inter-only`: a pipeline and nothing else, each stage on one device.
* `intra-only`: no pipeline, one stage on all devices.
* `pp-dp`: a pipeline with data parallelism inside of the stages (PipeDream: Narayanan et al.,
  SOSP'19, arXiv 1806.03377; DAPPLE: Fan et al., PPoPP'21, arXiv 2007.01045).
* `piper`: contiguous stages, each with a degree of data and one of tensor parallelism, with or
  without recomputation (Piper: Tarnawski et al., NeurIPS'21).
* `deepspeed`: no pipeline; experts over some devices, ZeRO at one of its stages for all else
  (DeepSpeed-MoE:
  Rajbhandari et al., arXiv 2201.05596), as Alpa (section 8.1) compares with for mixtures of
  experts.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardopt.solve.stages.baselines.grid import data_or_tensor, is_flat, is_hosts_by_devices
from shardopt.solve.stages.baselines.planner import Planner, Request, with_methods
from shardopt.solve.stages.dp.stage_dp import solve_stages
from shardopt.solve.stages.stage_problem import StageOption, StageProblem, StageSolution

# The stages of ZeRO, 0 first, without and with experts over the last axis.
_ZERO = ("data", "zero1", "zero2", "zero3")
_EXPERT_ZERO = ("expert", "expert-zero1", "expert-zero2", "expert-zero3")


def _solve(problem: StageProblem, request: Request) -> StageSolution:
    return solve_stages(problem, request.num_stages)


def _one_device(options: Iterable[StageOption]) -> tuple[StageOption, ...]:
    return tuple(option for option in options if option.num_devices == 1)


def _data(options: Iterable[StageOption]) -> tuple[StageOption, ...]:
    """One axis, or hosts by devices: the sum of a gradient inside of hosts first is the better
    one."""
    return with_methods(
        options, lambda option: ["data"] * (is_flat(option) or is_hosts_by_devices(option))
    )


def _data_and_tensor(options: Iterable[StageOption]) -> tuple[StageOption, ...]:
    return with_methods(options, data_or_tensor)


def _experts_and_zero(options: Iterable[StageOption]) -> tuple[StageOption, ...]:
    """(dp, ep): experts over the last axis; one axis, or hosts by devices, also without experts."""
    return with_methods(
        options,
        lambda option: (*_ZERO * (is_flat(option) or is_hosts_by_devices(option)), *_EXPERT_ZERO),
    )


DP = Planner(_solve, by_dp=True)
INTER_ONLY = Planner(_solve, _one_device, by_dp=True)
INTRA_ONLY = Planner(_solve, one_stage=True, by_dp=True)
PP_DP = Planner(_solve, _data, by_dp=True)
PIPER = Planner(_solve, _data_and_tensor, by_dp=True)
DEEPSPEED = Planner(_solve, _experts_and_zero, one_stage=True, by_dp=True)
