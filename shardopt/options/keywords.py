"""What functions take as `**options: Unpack[PlanKeywords]`, for type checkers and editors.

Made from `shardopt.options.plan_options` by `python -m scripts.docs`; a test
checks that it is up to date.
"""

from __future__ import annotations

import os
from typing import Literal, TypedDict

from shardopt.options.names import (
    Annotations,
    BatchArguments,
    BatchCoupling,
    InterOp,
    IntraOp,
    MeshIntraOp,
    MicrobatchSums,
    OffloadChoice,
    OverlapChoice,
    ReshardingStrategy,
)


class PlanKeywords(TypedDict, total=False):
    """Options of `shardopt.optimize`."""

    batch_args: BatchArguments
    """Arguments of the model that hold the batch: INDEX[:DIM] or NAME[:DIM] (DIM 0 by default;
    NAME may have * in it), or auto, or none. Default: 'auto'."""

    batch_coupling: BatchCoupling
    """What to do when the model mixes rows of the batch, as batch normalization does. Default:
    'error'."""

    microbatch_sums: MicrobatchSums
    """Type of sums over microbatches whose terms have 16 or 8 bits: f32, or their own, which
    takes half of the memory, and loses digits with every microbatch. Default: 'f32'."""

    microbatches: int | None
    """Number of equal parts of the batch; None: the number with the shortest predicted step.
    Default: 1."""

    layers: int | Literal["search"] | None
    """Number of layers to cluster into; None: one for each repeated block, or for equally many,
    up to 16; search: more of them as long as that shortens the predicted step. Default: None."""

    delta: float
    """A layer may exceed its equal share by this fraction. Default: 0.5."""

    layer_balance: Literal["flops", "seconds"] | Literal["search"]
    """What layers have about equal shares of: the FLOPs of the forward pass, or the predicted
    seconds of forward and backward, with what stages compute again; search: whichever gives
    the shorter predicted step. Default: 'flops'."""

    stages: int | None
    """Number of pipeline stages; None: the planner chooses. Default: None."""

    submesh: str | None
    """Allow only submeshes of this shape, HOSTSxDEVICES. Default: None."""

    logical_shape: str | None
    """Allow only this logical shape of a submesh, such as 2x2. Default: None."""

    schedule: str
    """A schedule's name, such as 1f1b, zero-bubble or interleaved:2, or a CSV file of tasks
    (docs/concepts/schedules.md); auto: the one with the shortest predicted step of 1f1b,
    eager-1f1b and gpipe; search: of all that plans can run, with stages for each. Default:
    'auto'."""

    token_slices: str
    """Under terapipe, the lengths of the slices into which the tokens of a sequence are cut; a
    single number is that of slices of equal length; auto: those with the shortest predicted
    step. Default: 'auto'."""

    intra_op: IntraOp
    """How shardings are chosen: by the solver (ilp), or by a known method
    (docs/concepts/intra-op.md). Default: 'ilp'."""

    inter_op: InterOp
    """How stages are chosen: by the stage DP (dp), or a baseline (docs/concepts/baselines.md).
    Default: 'dp'."""

    unroll: bool
    """Turn loops over layers into straight code, so that stages can cut between layers. Default:
    True."""

    split_stacks: bool
    """With several stages, lay the rows of stacked weights, and of their state, on the stages
    that read them, as if each layer had arguments of its own. Default: True."""

    annotations: Annotations
    """Sharding annotations of the model: obey what fits, insist on all, or ignore them. Default:
    'keep'."""

    custom_calls: str
    """Custom calls to allow, by name, beside those that XLA and JAX register. Default: ''."""

    constraints: str | os.PathLike[str]
    """File of constraints on shardings, YAML or JSON (docs/guide/constraints.md). Default: ''."""

    memory_budget: int | str
    """Bytes that a device may hold, such as 512MiB, instead of a share of its memory. Default:
    ''."""

    profile: str | os.PathLike[str]
    """File of `shardopt profile`: measured costs override formulas (docs/guide/profile.md).
    Default: ''."""

    overlap: OverlapChoice
    """Collectives run beside computing (docs/reference/costs.md): as the cluster says, always,
    never. Default: 'auto'."""

    recompute: str
    """What stages compute again in their backward: nothing, what is cheap and large, each layer,
    or all of it; with :K only the first K layers of each stage. Default: 'auto'."""

    offload: OffloadChoice
    """What stages keep in the memory of their hosts: nothing, the state that only the update
    uses, what the forward of a microbatch makes for its backward, or all of that; auto: what
    gives the shortest step within the memory. Default: 'none'."""

    resharding: ReshardingStrategy
    """How values travel between meshes (docs/concepts/resharding.md); auto: the cheapest for
    each. Default: 'auto'."""

    mcmc_seed: int
    """Of the random walk of inter-op=mcmc. Default: 0."""

    mcmc_proposals: int
    """Steps of that walk. Default: 10000."""

    plan: str | os.PathLike[str]
    """Plan file: what it says is not planned again (docs/guide/plan-file.md). Default: ''."""

    memory_fraction: float
    """Share of a device's memory that a stage may fill; 0 removes the limit. Default: 0.9."""

    gap: float
    """The solver of shardings stops within this share of the optimum. Default: 0.001."""

    time_limit: float
    """Work of the solver of shardings for one mesh, in seconds of a core; counted, not timed, so
    that equal models have equal plans on every machine. Default: 60.0."""

    unreduced: OverlapChoice
    """Whether values may stay unreduced along mesh axes; auto: in stages and in the format sdy.
    Default: 'auto'."""

    explain: str
    """What a remark explains the sharding of: argN, resultN, OP, OP:N, or a location pattern.
    Default: ''."""


class ShardKeywords(TypedDict, total=False):
    """Options of `shardopt.shard`."""

    batch_args: BatchArguments
    """Arguments of the model that hold the batch: INDEX[:DIM] or NAME[:DIM] (DIM 0 by default;
    NAME may have * in it), or auto, or none. Default: 'auto'."""

    intra_op: MeshIntraOp
    """How shardings are chosen: by the solver (ilp), or by a known method
    (docs/concepts/intra-op.md). Default: 'ilp'."""

    unroll: bool
    """Turn loops over layers into straight code, so that stages can cut between layers. Default:
    True."""

    annotations: Annotations
    """Sharding annotations of the model: obey what fits, insist on all, or ignore them. Default:
    'keep'."""

    custom_calls: str
    """Custom calls to allow, by name, beside those that XLA and JAX register. Default: ''."""

    constraints: str | os.PathLike[str]
    """File of constraints on shardings, YAML or JSON (docs/guide/constraints.md). Default: ''."""

    memory_budget: int | str
    """Bytes that a device may hold, such as 512MiB, instead of a share of its memory. Default:
    ''."""

    profile: str | os.PathLike[str]
    """File of `shardopt profile`: measured costs override formulas (docs/guide/profile.md).
    Default: ''."""

    overlap: OverlapChoice
    """Collectives run beside computing (docs/reference/costs.md): as the cluster says, always,
    never. Default: 'auto'."""

    memory_fraction: float
    """Share of a device's memory that a stage may fill; 0 removes the limit. Default: 0.9."""

    gap: float
    """The solver of shardings stops within this share of the optimum. Default: 0.001."""

    time_limit: float
    """Work of the solver of shardings for one mesh, in seconds of a core; counted, not timed, so
    that equal models have equal plans on every machine. Default: 60.0."""

    unreduced: OverlapChoice
    """Whether values may stay unreduced along mesh axes; auto: in stages and in the format sdy.
    Default: 'auto'."""

    explain: str
    """What a remark explains the sharding of: argN, resultN, OP, OP:N, or a location pattern.
    Default: ''."""


class StepKeywords(TypedDict, total=False):
    """Options of `shardopt.parallelize`."""

    batch_coupling: BatchCoupling
    """What to do when the model mixes rows of the batch, as batch normalization does. Default:
    'error'."""

    microbatch_sums: MicrobatchSums
    """Type of sums over microbatches whose terms have 16 or 8 bits: f32, or their own, which
    takes half of the memory, and loses digits with every microbatch. Default: 'f32'."""

    microbatches: int | None
    """Number of equal parts of the batch; None: the number with the shortest predicted step.
    Default: 1."""

    layers: int | Literal["search"] | None
    """Number of layers to cluster into; None: one for each repeated block, or for equally many,
    up to 16; search: more of them as long as that shortens the predicted step. Default: None."""

    delta: float
    """A layer may exceed its equal share by this fraction. Default: 0.5."""

    layer_balance: Literal["flops", "seconds"] | Literal["search"]
    """What layers have about equal shares of: the FLOPs of the forward pass, or the predicted
    seconds of forward and backward, with what stages compute again; search: whichever gives
    the shorter predicted step. Default: 'flops'."""

    stages: int | None
    """Number of pipeline stages; None: the planner chooses. Default: None."""

    submesh: str | None
    """Allow only submeshes of this shape, HOSTSxDEVICES. Default: None."""

    logical_shape: str | None
    """Allow only this logical shape of a submesh, such as 2x2. Default: None."""

    schedule: str
    """A schedule's name, such as 1f1b, zero-bubble or interleaved:2, or a CSV file of tasks
    (docs/concepts/schedules.md); auto: the one with the shortest predicted step of 1f1b,
    eager-1f1b and gpipe; search: of all that plans can run, with stages for each. Default:
    'auto'."""

    token_slices: str
    """Under terapipe, the lengths of the slices into which the tokens of a sequence are cut; a
    single number is that of slices of equal length; auto: those with the shortest predicted
    step. Default: 'auto'."""

    intra_op: IntraOp
    """How shardings are chosen: by the solver (ilp), or by a known method
    (docs/concepts/intra-op.md). Default: 'ilp'."""

    inter_op: InterOp
    """How stages are chosen: by the stage DP (dp), or a baseline (docs/concepts/baselines.md).
    Default: 'dp'."""

    unroll: bool
    """Turn loops over layers into straight code, so that stages can cut between layers. Default:
    True."""

    split_stacks: bool
    """With several stages, lay the rows of stacked weights, and of their state, on the stages
    that read them, as if each layer had arguments of its own. Default: True."""

    annotations: Annotations
    """Sharding annotations of the model: obey what fits, insist on all, or ignore them. Default:
    'keep'."""

    custom_calls: str
    """Custom calls to allow, by name, beside those that XLA and JAX register. Default: ''."""

    constraints: str | os.PathLike[str]
    """File of constraints on shardings, YAML or JSON (docs/guide/constraints.md). Default: ''."""

    memory_budget: int | str
    """Bytes that a device may hold, such as 512MiB, instead of a share of its memory. Default:
    ''."""

    profile: str | os.PathLike[str]
    """File of `shardopt profile`: measured costs override formulas (docs/guide/profile.md).
    Default: ''."""

    overlap: OverlapChoice
    """Collectives run beside computing (docs/reference/costs.md): as the cluster says, always,
    never. Default: 'auto'."""

    recompute: str
    """What stages compute again in their backward: nothing, what is cheap and large, each layer,
    or all of it; with :K only the first K layers of each stage. Default: 'auto'."""

    offload: OffloadChoice
    """What stages keep in the memory of their hosts: nothing, the state that only the update
    uses, what the forward of a microbatch makes for its backward, or all of that; auto: what
    gives the shortest step within the memory. Default: 'none'."""

    resharding: ReshardingStrategy
    """How values travel between meshes (docs/concepts/resharding.md); auto: the cheapest for
    each. Default: 'auto'."""

    mcmc_seed: int
    """Of the random walk of inter-op=mcmc. Default: 0."""

    mcmc_proposals: int
    """Steps of that walk. Default: 10000."""

    plan: str | os.PathLike[str]
    """Plan file: what it says is not planned again (docs/guide/plan-file.md). Default: ''."""

    memory_fraction: float
    """Share of a device's memory that a stage may fill; 0 removes the limit. Default: 0.9."""

    gap: float
    """The solver of shardings stops within this share of the optimum. Default: 0.001."""

    time_limit: float
    """Work of the solver of shardings for one mesh, in seconds of a core; counted, not timed, so
    that equal models have equal plans on every machine. Default: 60.0."""

    unreduced: OverlapChoice
    """Whether values may stay unreduced along mesh axes; auto: in stages and in the format sdy.
    Default: 'auto'."""
