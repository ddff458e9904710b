"""What a row of a table of measured steps states, as values that planning understands: model,
machine and plan."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from shardopt.hardware.cluster import Cluster, HostGroup
from shardopt.hardware.cluster_file import describe
from shardopt.measured.frameworks import Framework, framework_of
from shardopt.measured.layout import RowLayout, layout_of
from shardopt.measured.machines import machine_of, states_overlap
from shardopt.measured.rows import Row
from shardopt.measured.sizes import spec_of
from shardopt.measured.unstated import InexpressibleRow
from shardopt.models.computing import Computing
from shardopt.models.specs import GptSpec, MoeSpec, ResnetSpec, Spec, block_layers

# Products in 8 bits are beside numbers of 16: norms, attention and the residuals between blocks.
_PRECISIONS = {"fp16": "f16", "bf16": "bf16", "fp32": "f32", "fp8": "bf16"}


@dataclass(frozen=True)
class Case:
    """A row that can be planned. `spec.batch` is the batch of one step, whose numbers are of
    `dtype` but for what `how` says; what that recomputes is up to the plan. `sums_early` begins the
    sums of gradients, and gathers of weights, beside the microbatches next to them;
    `awaits_messages` lets stages compute nothing while they receive; `sums_together` makes one sum
    of all gradients, behind the last; `by_fsdp2` has ZeRO 3 as FSDP2 of PyTorch does it, and
    `buffers_gradients` adds gradients to what is held through the step, be it one microbatch."""

    row: Row
    spec: Spec
    dtype: str
    how: Computing
    sums_early: bool
    awaits_messages: bool
    sums_together: bool
    by_fsdp2: bool
    buffers_gradients: bool
    machine: HostGroup
    layout: RowLayout

    @property
    def shared_by(self) -> str:
        """Equal for cases that may differ in no more than layers, batch and number of meshes, and
        so share what is planned for them."""
        shape, layout = replace(self.spec, layers=0, batch=0), self.layout
        machine = repr(describe(Cluster(self.machine.name, (self.machine,))))
        plan = (layout.shape, layout.intra_op, layout.recomputation, layout.microbatch)
        return repr((shape, self.dtype, self.how, machine, plan, min(layout.stages, 3)))


def case_of(row: Row) -> Case:
    """Raises InexpressibleRow with what the row does not state, or what plans cannot say."""
    precision = _precision(row.precision)
    framework = framework_of(row)
    layout = layout_of(row, framework)
    machine = machine_of(row, framework)
    if layout.width > machine.devices_per_host and layout.width % machine.devices_per_host:
        raise InexpressibleRow(
            f"a stage of {layout.width} devices on hosts of {machine.devices_per_host}: stages "
            "over several hosts take whole ones"
        )
    spec = spec_of(row)
    if framework.ties and isinstance(spec, GptSpec | MoeSpec):
        spec = replace(spec, tied=True)
    if framework.pads_vocabulary:
        spec = _padded(spec, framework.pads_vocabulary * (row.tp or 1))
    if spec.layers % (layout.stages * block_layers(spec)):
        raise InexpressibleRow(
            f"{spec.layers} layers on {layout.stages} stages: which stage has how "
            "many is not stated"
        )
    if isinstance(spec, ResnetSpec):
        _check_resnet(precision, layout)
    if machine.overlap and machine.nccl is not None:
        combined = _combined_bytes(framework, spec, layout, precision)
        machine = replace(machine, combined_bytes=combined or None)
    how = replace(framework.how, float8=precision == "fp8")
    waits = (states_overlap(row), framework.awaits_messages, framework.sums_together)
    by_fsdp2 = framework.by_fsdp2 and layout.intra_op.endswith("zero3")
    of_zero = (by_fsdp2, framework.buffers_gradients)
    return Case(row, spec, _PRECISIONS[precision], how, *waits, *of_zero, machine, layout)


def _combined_bytes(framework: Framework, spec: Spec, layout: RowLayout, precision: str) -> float:
    """Of weights, in the numbers in which they are gathered."""
    if not framework.combines_blocks or isinstance(spec, ResnetSpec):
        return framework.combines
    blocks = spec.parameters - replace(spec, layers=0).parameters
    size = 1 if precision == "fp8" else 2
    return size * blocks * block_layers(spec) / spec.layers / layout.tensor_parts


def _padded(spec: Spec, step: int) -> Spec:
    """With a vocabulary that is a multiple of `step`."""
    if isinstance(spec, ResnetSpec):
        return spec
    return replace(spec, vocab=-(-spec.vocab // step) * step)


def _precision(text: str) -> str:
    names = re.findall(r"fp16|bf16|fp32|fp8|int8", text)
    if not names:
        raise InexpressibleRow(f"precision '{text}' is none of {', '.join(_PRECISIONS)}")
    if names[0] not in _PRECISIONS:
        raise InexpressibleRow(f"products in {names[0]} are not built")
    return str(names[0])


def _check_resnet(precision: str, layout: RowLayout) -> None:
    """It has neither attention nor products of the kind that is taken in 8 bits."""
    if precision == "fp8":
        raise InexpressibleRow("convolutions in fp8 are not built")
    if layout.recomputation is not None and layout.recomputation.within != "none":
        raise InexpressibleRow("selective recomputation of a model without attention")
