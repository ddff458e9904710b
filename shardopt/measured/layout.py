"""The plan that a row of a table of measured steps states: axes, method, schedule, recomputation
and microbatch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import log2, prod

from shardopt.measured.frameworks import Framework
from shardopt.measured.rows import Row
from shardopt.measured.unstated import InexpressibleRow
from shardopt.models.computing import Recomputed
from shardopt.schedule.schedules import SCHEDULES, find_schedule

_ZERO = {"": 0, "0": 0, "1": 1, "2": 2, "3": 3}
# What the sources call methods that have no sizes of axes; in a note, behind "method".
_METHODS = {
    "auto_sharding": "ilp",
    "data_parallel": "data",
    "zero_2": "zero2",
    "zero_3": "zero3",
    "heuristic": "heuristic",
}
# What a note says behind "attention by", of rows whose sequences are split.
# A ring brings each device the bytes of a gather, block by block, and plans with stages and
# microbatches have none.
_CONTEXT = {"all-gather": "context-gather", "ring": "context-gather", "ulysses": "ulysses"}


@dataclass(frozen=True)
class RowRecomputation:
    """What the backward pass computes again: what stages do (`shardopt.graph.recomputed_units`),
    and parts of a block as the model has it."""

    stages: str = "none"
    within: Recomputed = "none"


@dataclass(frozen=True)
class RowLayout:
    """The plan of a row: `pp` meshes of the axes `shape`, each with `vpp` stages, sharded by the
    method `intra_op`.

    A mesh takes `replicas` microbatches of `microbatch` examples at once, and `batch` examples a
    step. None stands for what the row does not state: the microbatch, or what is recomputed. `full`
    is what full recomputation would be, `between` what the framework has between none and that."""

    shape: tuple[int, ...]
    replicas: int
    pp: int
    vpp: int
    intra_op: str
    schedule: str
    recomputation: RowRecomputation | None
    microbatch: int | None
    batch: int
    full: RowRecomputation = RowRecomputation("layer")
    between: tuple[RowRecomputation, ...] = ()

    @property
    def stages(self) -> int:
        return self.pp * self.vpp

    @property
    def width(self) -> int:
        """Devices of a mesh."""
        return prod(self.shape)

    @property
    def tensor_parts(self) -> int:
        """Into how many parts tensor parallelism splits a block."""
        splits = any(name in self.intra_op for name in ("sequence", "megatron"))
        return self.shape[-1] if splits else 1

    @property
    def splits_optimizer_alone(self) -> bool:
        """Whether every device has all weights that its replica computes with, and ZeRO a part of
        their float32 values, which systems count to the optimizer's state."""
        return self.intra_op.endswith(("zero1", "zero2"))

    @property
    def splits_batch_alone(self) -> bool:
        """Whether devices sum gradients, and nothing else."""
        return self.intra_op in ("data", "zero1", "zero2", "zero3", "mics")

    @property
    def microbatches(self) -> int:
        """Of a step, where the microbatch is stated."""
        assert self.microbatch is not None, "the caller fills in what is open"
        return self.batch // (self.replicas * self.microbatch)


def layout_of(row: Row, framework: Framework) -> RowLayout:
    """Raises InexpressibleRow with what the row does not state, or what plans cannot say."""
    # Layers of a convolution net end with an addition, which takes next to nothing again.
    whole = framework.reruns and "resnet" not in row.arch.lower()
    full = RowRecomputation(within="whole") if whole else RowRecomputation("layer")
    if row.devices is None or row.gbs is None:
        raise InexpressibleRow("states no number of devices or no global batch")
    method = _method(row)
    shape, replicas, intra_op = _of_method(row, method) if method else _axes(row, framework)
    pp, vpp = row.pp or 1, row.vpp or 1
    if prod(shape) * pp != row.devices:
        sizes = "dp · cp · tp · pp" if (row.cp or 1) > 1 else "dp · tp · pp"
        raise InexpressibleRow(f"{sizes} is {prod(shape) * pp}, on {row.devices} devices")
    microbatch = row.mbs
    if method and microbatch is not None:  # of a method, microbatches are those of all devices
        microbatch = max(1, microbatch // replicas)
    if row.gbs % (replicas * (microbatch or 1)):
        raise InexpressibleRow(
            f"a batch of {row.gbs} is no multiple of {replicas} replicas of "
            f"{microbatch or 1} examples"
        )
    shape, replicas, batch = _that_zero_splits(row, shape, replicas, intra_op)
    recomputation = _recomputation(row.recompute, framework.selective, full)
    schedule = _schedule(row, vpp)
    between = tuple(RowRecomputation(within=part) for part in framework.between)
    plan = (schedule, recomputation, microbatch, batch, full, between)
    return RowLayout(shape, replicas, pp, vpp, intra_op, *plan)


def _that_zero_splits(
    row: Row, shape: tuple[int, ...], replicas: int, intra_op: str
) -> tuple[tuple[int, ...], int, int]:
    """Axes, replicas and batch. Frameworks split flat buffers, which any number divides; a plan
    splits dimensions. Where the replicas divide none, as 48 do, the nearest power of two stands
    for them: each has as much to compute, and sends as many bytes within a percent."""
    assert row.gbs is not None, "the caller looks"
    divides = row.hidden is None or row.hidden % replicas == 0
    if divides or (row.ep or 1) > 1 or not re.search(r"zero[123]$", intra_op):
        return shape, replicas, row.gbs
    nearest = 2 ** round(log2(replicas))
    return (shape[0] * nearest // replicas, *shape[1:]), nearest, row.gbs * nearest // replicas


def _method(row: Row) -> str:
    named = re.match(r"method (\w+)", row.note)
    return _METHODS.get(named[1], "") if named else ""


def _of_method(row: Row, method: str) -> tuple[tuple[int, ...], int, str]:
    """Axes of a mesh, replicas and method, where the row names a method in place of sizes."""
    if (row.pp or 1) > 1:
        raise InexpressibleRow(f"method {method} with a pipeline")
    assert row.devices is not None, "the caller looks"
    if method == "ilp":  # which splits what it likes: the whole batch is one microbatch
        return (1, row.devices), 1, "replicate" if row.devices == 1 else method
    return (row.devices, 1), row.devices, "replicate" if row.devices == 1 else method


def _axes(row: Row, framework: Framework) -> tuple[tuple[int, ...], int, str]:
    """Axes of a mesh, replicas and method, of the sizes that the row states."""
    if row.zero not in _ZERO:
        raise InexpressibleRow(f"ZeRO stage '{row.zero}' is none of 0 to 3")
    if (row.cp or 1) > 1:
        return _context(row, framework)
    if row.dp is None or row.tp is None or row.pp is None:
        raise InexpressibleRow("states no plan: dp, tp or pp is missing")
    experts = row.ep or 1
    if experts > 1 and row.tp > 1:
        raise InexpressibleRow("expert parallelism together with tensor parallelism")
    if row.dp % experts:
        raise InexpressibleRow(f"{experts} groups of experts on {row.dp} replicas")
    # ZeRO splits among replicas: one of them has all.
    stage = _ZERO[row.zero] if row.dp > 1 else 0
    suffix = f"-zero{stage}" if stage else ""
    if experts > 1:
        return (row.dp // experts, experts), row.dp, f"expert{suffix}"
    if row.tp > 1:
        split = "sequence" if framework.splits_sequence or _splits_sequence(row) else "megatron"
        return (row.dp, row.tp), row.dp, f"{split}{suffix}"
    if stage == 3 and (pod := _pod(row)):
        return (row.dp // pod, pod), row.dp, "mics"
    alone = "replicate" if row.dp == 1 else "data"
    return (row.dp, 1), row.dp, f"zero{stage}" if stage else alone


def _context(row: Row, framework: Framework) -> tuple[tuple[int, ...], int, str]:
    """The same of a row whose sequences are split. Beside that axis, axes that it does not state
    have size 1, but for the replicas: those are what is left of the devices."""
    assert row.cp is not None and row.devices is not None, "the caller looks"
    if (row.ep or 1) > 1:
        raise InexpressibleRow("context parallelism together with expert parallelism")
    named = re.search(r"attention by ([\w-]+)", row.note)
    way = named[1] if named else framework.attends_by
    if way not in _CONTEXT:
        raise InexpressibleRow(f"attention by '{way}' is none of {', '.join(_CONTEXT)}")
    tensor = row.tp or 1
    replicas = row.dp or row.devices // (row.cp * tensor * (row.pp or 1))
    split, shape = _CONTEXT[way], (replicas, row.cp, *((tensor,) if tensor > 1 else ()))
    if tensor > 1:
        split += "-sequence" if framework.splits_sequence or _splits_sequence(row) else "-megatron"
    stage = _ZERO[row.zero]  # which splits among the parts of a sequence, too
    return shape, replicas, f"{split}-zero{stage}" if stage else split


def _pod(row: Row) -> int:
    """Of how many replicas each part has a copy of the state, which it splits; 0 where all of them
    split one."""
    stated = re.search(r"pods of (\d+); FSDP inside a pod", row.note)
    size = int(stated[1]) if stated else 0
    return size if size and row.dp and row.dp > size and row.dp % size == 0 else 0


def _splits_sequence(row: Row) -> bool:
    """Megatron-LM's arguments.py takes tp-comm-overlap together with sequence parallelism only."""
    return "sequence parallel" in row.recompute or "tp-comm-overlap" in row.note


def _schedule(row: Row, vpp: int) -> str:
    name = row.schedule or "1f1b"
    plain = name.partition(":")[0]
    if plain == "interleaved" and vpp == 1:
        raise InexpressibleRow("interleaved, and the number of stages of a device is not stated")
    if vpp > 1 and plain in ("1f1b", "interleaved"):
        return f"interleaved:{vpp}"
    if plain not in SCHEDULES or not find_schedule(name).is_plain:
        raise InexpressibleRow(f"schedule '{name}'")
    return name


def _recomputation(
    text: str, selective: Recomputed, full: RowRecomputation
) -> RowRecomputation | None:
    """Frameworks call it full when they keep the input of every layer, and selective when they
    compute attention again; or, operation by operation, all but products. MaxText's policy is
    custom where it names what it keeps: `context` are the results of attention."""
    plain = text.partition("+")[0].strip()
    if not plain:
        return None
    if plain.startswith("full"):
        return full
    if plain.startswith("selective per op"):
        return RowRecomputation(within="per-operation")
    if plain == "selective":
        return RowRecomputation(within=selective)
    if plain == "selective (attention)":
        return RowRecomputation(within="attention")
    if plain == "none":
        return RowRecomputation()
    if plain in ("all but attention", "custom (context=device)"):
        return RowRecomputation(within="all-but-attention")
    raise InexpressibleRow(f"recomputation '{text}'")
