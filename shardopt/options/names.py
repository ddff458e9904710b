"""The names that options choose from, and what keyword arguments take: each list stands here and
nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

BatchCoupling = Literal["error", "per-microbatch"]
# What sums over microbatches are kept in where their terms have 16 or 8 bits.
MicrobatchSums = Literal["f32", "own"]
Annotations = Literal["keep", "require", "drop"]
Unreduced = Literal["auto", "on", "off"]
# How a module without stages says its shardings: GSPMD's and Shardy's words, or carried out.
ShardingFormat = Literal["mhlo", "sdy", "collectives"]
ReshardingStrategy = Literal["auto", "send_recv", "local_allgather", "broadcast"]

OverlapChoice = Literal["auto", "on", "off"]

# What stages keep in the memory of their hosts (`shardopt.graph.offloading`).
OffloadChoice = Literal["auto", "none", "optimizer", "activations", "all"]

# What layers have about equal shares of.
LayerBalance = Literal["flops", "seconds"]

# Planners of stages. `equal-op` is `equal-layer` on layers of equally many operations, so no
# planner of its own.
StagePlanner = Literal[
    "dp",
    "equal-layer",
    "inter-only",
    "intra-only",
    "pp-dp",
    "megatron",
    "deepspeed",
    "piper",
    "mcmc",
]
InterOp = Literal[StagePlanner, "equal-op"]

# What part of a cluster is best (`shardopt.size`).
Objective = Literal["devices", "cost", "step", "batch"]

# How the values inside of a stage are sharded.
IntraOp = Literal[
    "ilp",
    "data",
    "zero1",
    "zero2",
    "zero3",
    "mics",
    "autodist",
    "megatron",
    "megatron-zero1",
    "megatron-zero2",
    "megatron-zero3",
    "sequence",
    "sequence-zero1",
    "sequence-zero2",
    "sequence-zero3",
    "context-gather",
    "context-gather-zero1",
    "context-gather-zero2",
    "context-gather-zero3",
    "ulysses",
    "ulysses-zero1",
    "ulysses-zero2",
    "ulysses-zero3",
    "context-gather-megatron",
    "context-gather-megatron-zero1",
    "context-gather-megatron-zero2",
    "context-gather-megatron-zero3",
    "context-gather-sequence",
    "context-gather-sequence-zero1",
    "context-gather-sequence-zero2",
    "context-gather-sequence-zero3",
    "ulysses-megatron",
    "ulysses-megatron-zero1",
    "ulysses-megatron-zero2",
    "ulysses-megatron-zero3",
    "ulysses-sequence",
    "ulysses-sequence-zero1",
    "ulysses-sequence-zero2",
    "ulysses-sequence-zero3",
    "ring",
    "ring-zero1",
    "ring-zero2",
    "ring-zero3",
    "summa-2d",
    "2.5d",
    "3d",
    "expert",
    "expert-zero1",
    "expert-zero2",
    "expert-zero3",
    "tofu",
    "heuristic",
    "replicate",
]
# The shard phase does as the stage was planned (auto); Shardy reads a module, not a stage.
MeshIntraOp = Literal["auto", IntraOp, "shardy"]

# Where programs run, and how their workers exchange messages.
BackendName = Literal["local", "process", "ray"]
PlatformName = Literal["auto", "cpu", "gpu"]
TransportName = Literal["auto", "sockets", "ray", "nccl"]

# Text as of the command line; numbers of flat arguments or names, split along dimension 0; or
# number or name -> dimension.
BatchArguments = (
    str | Sequence[int | str] | Mapping[int, int] | Mapping[str, int] | Mapping[int | str, int]
)
