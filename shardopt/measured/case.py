"""What a row of a table of measured steps states, as values that planning understands: model,
machine and plan."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from shardopt.hardware.cluster import HostGroup
from shardopt.measured.machines import machine_of
from shardopt.measured.rows import Row
from shardopt.measured.sizes import spec_of
from shardopt.measured.unstated import InexpressibleRow
from shardopt.models.specs import Spec, block_layers

_PRECISIONS = {"fp16": "f16", "bf16": "bf16", "fp32": "f32"}
_ZERO = {"": "data", "0": "data", "1": "zero1", "2": "zero2", "3": "zero3"}
# What the sources call methods that have no sizes of axes; in a note, behind "method".
_METHODS = {
    "auto_sharding": "ilp",
    "data_parallel": "data",
    "zero_2": "zero2",
    "zero_3": "zero3",
    "heuristic": "heuristic",
}


@dataclass(frozen=True)
class Layout:
    """The plan of a row: `pp` meshes of `dp` x `tp` devices, each with `vpp` stages, sharded by the
    method `intra_op`.

    `microbatch` examples run at once on each of the `dp` replicas. `recompute` is one of `none` and
    `layer`, or empty where the row does not state it."""

    dp: int
    tp: int
    pp: int
    vpp: int
    intra_op: str
    schedule: str
    recompute: str
    microbatch: int
    microbatches: int

    @property
    def stages(self) -> int:
        return self.pp * self.vpp


@dataclass(frozen=True)
class Case:
    """A row that can be planned. `spec.batch` is the batch of one step."""

    row: Row
    spec: Spec
    dtype: str
    machine: HostGroup
    layout: Layout

    @property
    def shared_by(self) -> str:
        """Equal for cases that may differ in no more than layers, batch and number of meshes, and
        so share what is planned for them."""
        shape, layout = replace(self.spec, layers=0, batch=0), self.layout
        axes = (layout.dp, layout.tp, layout.intra_op, layout.recompute, layout.microbatch)
        return repr((shape, self.dtype, self.machine.name, axes, min(layout.stages, 3)))


def case_of(row: Row) -> Case:
    """Raises InexpressibleRow with what the row does not state, or what plans cannot say."""
    dtype = _dtype(row.precision)
    if row.devices is None or row.gbs is None:
        raise InexpressibleRow("states no number of devices or no global batch")
    layout = _layout(row)
    machine = machine_of(row)
    width = layout.dp * layout.tp
    if width > machine.devices_per_host and width % machine.devices_per_host:
        raise InexpressibleRow(
            f"a stage of {width} devices on hosts of {machine.devices_per_host}: stages over "
            "several hosts take whole ones"
        )
    spec = spec_of(row)
    if spec.layers % (layout.stages * block_layers(spec)):
        raise InexpressibleRow(
            f"{spec.layers} layers on {layout.stages} stages: which stage has how many is not "
            "stated"
        )
    return Case(row, spec, dtype, machine, layout)


def _dtype(precision: str) -> str:
    names = re.findall(r"fp16|bf16|fp32|fp8|int8", precision)
    if not names:
        raise InexpressibleRow(f"precision '{precision}' is none of {', '.join(_PRECISIONS)}")
    if names[0] not in _PRECISIONS:
        raise InexpressibleRow(f"products in {names[0]} are not built")
    return _PRECISIONS[names[0]]


def _layout(row: Row) -> Layout:
    if (row.cp or 1) > 1:
        raise InexpressibleRow("context parallelism: no method splits the sequence of attention")
    if (row.ep or 1) > 1:
        raise InexpressibleRow("expert parallelism beside other axes is not built")
    dp, tp, pp, intra_op = _axes(row)
    vpp = row.vpp or 1
    if dp * tp * pp != row.devices:
        raise InexpressibleRow(f"dp · tp · pp is {dp * tp * pp}, on {row.devices} devices")
    assert row.gbs is not None, "the caller looks"
    microbatch = row.mbs
    if microbatch is None:
        raise InexpressibleRow("states no microbatch")
    if method := _method(row):  # of a method, microbatches are those of all devices
        microbatch = max(1, microbatch // dp) if method != "ilp" else microbatch
    if row.gbs % (dp * microbatch):
        raise InexpressibleRow(
            f"a batch of {row.gbs} is no multiple of {dp} replicas of {microbatch} examples"
        )
    return Layout(
        dp,
        tp,
        pp,
        vpp,
        intra_op,
        _schedule(row, vpp),
        _recompute(row.recompute),
        microbatch,
        row.gbs // (dp * microbatch),
    )


def _method(row: Row) -> str:
    named = re.match(r"method (\w+)", row.note)
    return _METHODS.get(named[1], "") if named else ""


def _axes(row: Row) -> tuple[int, int, int, str]:
    """Sizes of the axes, and how a stage is sharded over the first two."""
    if method := _method(row):
        if (row.pp or 1) > 1:
            raise InexpressibleRow(f"method {method} with a pipeline")
        assert row.devices is not None, "the caller looks"
        axes = (1, row.devices) if method == "ilp" else (row.devices, 1)
        return *axes, 1, "replicate" if row.devices == 1 else method
    if row.dp is None or row.tp is None or row.pp is None:
        raise InexpressibleRow("states no plan: dp, tp or pp is missing")
    if row.zero not in _ZERO:
        raise InexpressibleRow(f"ZeRO stage '{row.zero}' is none of 0 to 3")
    if row.tp == 1:
        return row.dp, 1, row.pp, "replicate" if row.dp == 1 else _ZERO[row.zero]
    if _ZERO[row.zero] != "data":
        raise InexpressibleRow(f"ZeRO-{row.zero} together with tensor parallelism")
    return row.dp, row.tp, row.pp, "megatron"


def _schedule(row: Row, vpp: int) -> str:
    if row.schedule == "interleaved" and vpp == 1:
        raise InexpressibleRow("interleaved, and the number of stages of a device is not stated")
    if vpp > 1:
        return f"interleaved:{vpp}"
    name = row.schedule or "1f1b"
    if name != "1f1b":
        raise InexpressibleRow(f"schedule '{name}'")
    return name


def _recompute(text: str) -> str:
    """Frameworks call it full when they keep the input of every layer; with us that is `layer`."""
    if text.startswith("full"):
        return "layer"
    if text in ("none", ""):
        return text
    raise InexpressibleRow(f"recomputation '{text}'")
