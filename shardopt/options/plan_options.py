"""The table of what planning can be told: the one place where such an option is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from shardopt.options.names import (
    Annotations,
    BatchCoupling,
    InterOp,
    IntraOp,
    LayerBalance,
    MicrobatchSums,
    OffloadChoice,
    OverlapChoice,
    ReshardingStrategy,
    Unreduced,
)
from shardopt.options.table import Function, row

_EVERYWHERE: tuple[Function, ...] = ("optimize", "shard", "parallelize")
_PATH: Mapping[Function, str] = dict.fromkeys(_EVERYWHERE, "str | os.PathLike[str]")


@dataclass(frozen=True)
class PlanOptions:
    """What `shardopt plan` and `shardopt.optimize` can be told; `None` leaves the choice to the
    planner."""

    cluster: str = row(
        help="what to plan for: a cluster file, or a preset with an optional :HxD",
        phases=("cluster", "stage", "intra"),
        functions=(),  # an argument that must be there
        in_file="read",
        note="with a plan file, by default the cluster of the file",
        metavar="FILE|PRESET[:HxD]",
    )
    batch_args: str = row(
        "auto",
        help="arguments of the model that hold the batch: INDEX[:DIM] or NAME[:DIM] (DIM 0 by "
        "default; NAME may have * in it), or auto, or none",
        phases=("microbatch", "stage", "shard", "intra"),
        functions=("optimize", "shard"),
        metavar="I,NAME[:DIM]|auto|none",
        accepts=dict.fromkeys(_EVERYWHERE, "BatchArguments"),
    )
    batch_coupling: BatchCoupling = row(
        "error",
        help="what to do when the model mixes rows of the batch, as batch normalization does",
        phases=("microbatch",),
    )
    microbatch_sums: MicrobatchSums = row(
        "f32",
        help="type of sums over microbatches whose terms have 16 or 8 bits: f32, or their own, "
        "which takes half of the memory, and loses digits with every microbatch",
        phases=("microbatch",),
    )
    microbatches: int | None = row(
        1,
        help="number of equal parts of the batch",
        phases={"microbatch": "num-microbatches"},
        unset="the number with the shortest predicted step",
        metavar="N|auto",
        least=1,
    )
    layers: int | Literal["search"] | None = row(
        None,
        help="number of layers to cluster into",
        phases=("cluster",),
        unset="one for each repeated block, or for equally many, up to 16",
        note="search: more of them as long as that shortens the predicted step",
        metavar="N|auto|search",
        least=1,
    )
    delta: float = row(
        0.5,
        help="a layer may exceed its equal share by this fraction",
        phases=("cluster",),
        metavar="FRACTION",
        least=0,
    )
    layer_balance: LayerBalance | Literal["search"] = row(
        "flops",
        help="what layers have about equal shares of: the FLOPs of the forward pass, or the "
        "predicted seconds of forward and backward, with what stages compute again",
        phases=("cluster",),
        note="search: whichever gives the shorter predicted step",
    )
    stages: int | None = row(
        None,
        help="number of pipeline stages",
        phases={"stage": "num-stages"},
        unset="the planner chooses",
        metavar="N|auto",
        least=1,
    )
    submesh: str | None = row(
        None,
        help="allow only submeshes of this shape, HOSTSxDEVICES",
        phases=("stage",),
        metavar="HxD",
    )
    logical_shape: str | None = row(
        None,
        help="allow only this logical shape of a submesh, such as 2x2",
        phases=("stage",),
        metavar="RxC",
    )
    schedule: str = row(
        "auto",
        help="a schedule's name, such as 1f1b, zero-bubble or interleaved:2, or a CSV file of "
        "tasks (docs/concepts/schedules.md); auto: the one with the shortest predicted step of "
        "1f1b, eager-1f1b and gpipe; search: of all that plans can run, with stages for each",
        phases=("stage", "schedule"),
        metavar="NAME|FILE|auto|search",
    )
    token_slices: str = row(
        "auto",
        help="under terapipe, the lengths of the slices into which the tokens of a sequence are "
        "cut; a single number is that of slices of equal length; auto: those with the shortest "
        "predicted step",
        phases=("stage",),
        in_file="changed",
        metavar="L,L,…|N|auto",
    )
    intra_op: IntraOp = row(
        "ilp",
        help="how shardings are chosen: by the solver (ilp), or by a known method "
        "(docs/concepts/intra-op.md)",
        metavar="METHOD",
        phases=("stage", "intra"),
        functions=_EVERYWHERE,
        accepts={"shard": "MeshIntraOp"},
    )
    inter_op: InterOp = row(
        "dp",
        help="how stages are chosen: by the stage DP (dp), or a baseline "
        "(docs/concepts/baselines.md)",
        phases={"cluster": "method", "stage": "inter-op"},
    )
    unroll: bool = row(
        True,
        help="turn loops over layers into straight code, so that stages can cut between layers",
        phases=("import", "intra"),
        functions=_EVERYWHERE,
        off="keep loops over layers rolled",
    )
    split_stacks: bool = row(
        True,
        help="with several stages, lay the rows of stacked weights, and of their state, on the "
        "stages that read them, as if each layer had arguments of its own",
        phases=("cluster",),
        off="keep each stack of weights whole, on one stage",
    )
    annotations: Annotations = row(
        "keep",
        help="sharding annotations of the model: obey what fits, insist on all, or ignore them",
        phases=("import", "shard", "intra"),
        functions=_EVERYWHERE,
    )
    custom_calls: str = row(
        "",
        help="custom calls to allow, by name, beside those that XLA and JAX register",
        phases=("import", "intra"),
        functions=_EVERYWHERE,
        in_file="no",  # a file from somewhere vouches for nothing
        metavar="NAME,…",
    )
    constraints: str = row(
        "",
        help="file of constraints on shardings, YAML or JSON (docs/guide/constraints.md)",
        phases=("shard", "intra"),
        functions=_EVERYWHERE,
        metavar="FILE",
        accepts=_PATH,
    )
    memory_budget: str = row(
        "",
        help="bytes that a device may hold, such as 512MiB, instead of a share of its memory",
        phases=("stage", "shard", "intra", "schedule"),
        functions=_EVERYWHERE,
        metavar="BYTES",
        accepts=dict.fromkeys(_EVERYWHERE, "int | str"),
    )
    profile: str = row(
        "",
        help="file of `shardopt profile`: measured costs override formulas (docs/guide/profile.md)",
        phases=("cluster", "stage", "intra"),
        functions=_EVERYWHERE,
        metavar="FILE",
        accepts=_PATH,
    )
    overlap: OverlapChoice = row(
        "auto",
        help="collectives run beside computing (docs/reference/costs.md): as the cluster says, "
        "always, never",
        phases=("stage", "intra"),
        functions=_EVERYWHERE,
    )
    recompute: str = row(
        "auto",
        help="what stages compute again in their backward: nothing, what is cheap and large, each "
        "layer, or all of it; with :K only the first K layers of each stage",
        phases=("cluster", "stage"),
        metavar="auto|none|selective[:K]|layer[:K]|full",
    )
    offload: OffloadChoice = row(
        "none",
        help="what stages keep in the memory of their hosts: nothing, the state that only the "
        "update uses, what the forward of a microbatch makes for its backward, or all of that; "
        "auto: what gives the shortest step within the memory",
        phases=("stage",),
    )
    resharding: ReshardingStrategy = row(
        "auto",
        help="how values travel between meshes (docs/concepts/resharding.md); auto: the cheapest "
        "for each",
        phases={"transfer": "strategy"},
    )
    mcmc_seed: int = row(
        0,
        help="of the random walk of inter-op=mcmc",
        phases=("stage",),
        metavar="N",
        least=0,
    )
    mcmc_proposals: int = row(
        10000,
        help="steps of that walk",
        phases=("stage",),
        metavar="N",
        least=1,
    )
    plan: str = row(
        "",
        help="plan file: what it says is not planned again (docs/guide/plan-file.md)",
        phases=("cluster", "stage", "shard"),
        in_file="no",
        metavar="FILE",
        accepts=_PATH,
    )
    memory_fraction: float = row(
        0.9,
        help="share of a device's memory that a stage may fill; 0 removes the limit",
        phases=("stage", "shard", "intra", "schedule"),
        functions=_EVERYWHERE,
        in_file="changed",
        metavar="FRACTION",
        least=0,
        most=1,
    )
    # Predictions are no better than that: a smaller gap takes time and gains nothing.
    gap: float = row(
        0.001,
        help="the solver of shardings stops within this share of the optimum",
        phases=("shard", "intra"),
        functions=_EVERYWHERE,
        in_file="changed",
        metavar="FRACTION",
        least=0,
    )
    time_limit: float = row(
        60.0,
        help="work of the solver of shardings for one mesh, in seconds of a core; counted, not "
        "timed, so that equal models have equal plans on every machine",
        phases=("shard", "intra"),
        functions=_EVERYWHERE,
        in_file="changed",
        metavar="SECONDS",
        least=0,
    )
    unreduced: Unreduced = row(
        "auto",
        help="whether values may stay unreduced along mesh axes; auto: in stages and in the format "
        "sdy",
        phases=("shard", "intra"),
        functions=_EVERYWHERE,
        in_file="changed",
    )
    explain: str = row(
        "",
        help="what a remark explains the sharding of: argN, resultN, OP, OP:N, or a location "
        "pattern",
        phases=("shard", "intra"),
        functions=("optimize", "shard"),
        in_file="no",
        metavar="WHAT",
    )
