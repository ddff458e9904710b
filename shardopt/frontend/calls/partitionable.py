"""Functions with a rule of their own for partitioners (`jax.custom_partitioning`), such as wrappers
of kernels.

    %0 = custom_call @shardopt.partitioned(%x) {backend_config = "0", sdy.sharding_rule = …}  : 8x4

On one device JAX writes what the function computes there, and neither its rule nor how it is to be
written at another size. So what calls kernels stands in the module as one call with its rule. It is
planned like any other: cut into microbatches, and split over devices as the rule says. In the
finished plan each call is replaced by what the function's own `partition` computes on a device.
That is code of this process, which is why only functions can be planned so, and no modules.

What a sum is that a rule names, `partition` adds up by itself. So contracted dimensions stay whole,
and a result without the split dimension, such as the gradient of a scale, is a value that all
devices have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardopt.dialect.annotation import is_marker
from shardopt.dialect.custom_calls import PARTITIONED, call_target
from shardopt.dialect.manual import MANUAL, ManualRegion, read_region
from shardopt.extract.call_rules import CALL, call_rule
from shardopt.extract.fused_attention import is_attention
from shardopt.frontend.calls.jax_internals import as_one_call
from shardopt.ir.context import make_context
from shardopt.ir.rewriting import operations, shape_of, splice_block
from shardopt.mesh.mesh import Sharding
from shardopt.pipeline.manager import run_pipeline
from shardopt.support.errors import UserError

# What JAX lowers becomes what stands in a plan.
_IMPORT = (
    "builtin.module(shardopt-inline-calls,shardopt-read-manual-regions,"
    "func.func(chlo-legalize-to-stablehlo),canonicalize,cse)"
)
_CHANNEL = "channel_handle"
_ONE_DEVICE = ManualRegion((("device", 1),), ("device",), (), ())


@dataclass
class Partitionables:
    """The functions that stand as one call in a module for `platform`; its name is their number."""

    platform: str
    functions: list[Mapping[str, Any]] = field(default_factory=list)

    def lowering_rules(self) -> tuple[Any, ...]:
        """For `jax.export`."""
        return as_one_call(self._name, PARTITIONED)

    def write_out(self, module: ir.Module) -> None:
        """Replace each call by what it computes where it stands. Raises UserError for a function
        that is partitioned in another way than its rule says."""
        with module.context, ir.Location.unknown():
            for op in operations(module.operation, (CALL,)):
                if call_target(op) == PARTITIONED:
                    self._write_out(op)
            _number_channels(module)

    def _name(self, params: Mapping[str, Any]) -> str:
        """The name of a function that stays one call: one with a rule, around calls that have
        none."""
        if params["sharding_rule"] is None or not self._calls_kernels(params):
            return ""
        self.functions.append(params)
        return str(len(self.functions) - 1)

    def _calls_kernels(self, params: Mapping[str, Any]) -> bool:
        call = params["call"]
        text = self._lowered(jaxpr_as_fun(call), call.in_avals)
        with make_context(), ir.Location.unknown():
            module = ir.Module.parse(text)
            return any(map(_is_unknown, operations(module.operation, (CALL,))))

    def _lowered(self, function: Any, types: Sequence[Any]) -> str:
        types = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in types]
        lowered = jax.jit(function).trace(*types).lower(lowering_platforms=(self.platform,))
        return str(lowered.compiler_ir())

    def _write_out(self, op: ir.Operation) -> None:
        params = self.functions[int(ir.StringAttr(op.attributes["backend_config"]).value)]
        module = ir.Module.parse(self._on_a_device(op, params))
        run_pipeline(module, _IMPORT)
        # For a single device there is no region: the function itself is that code.
        [code, *_] = operations(module.operation, (MANUAL, "func.func"))
        copy = code.clone(ip=ir.InsertionPoint(op))
        _, end = splice_block(copy.regions[0].blocks[0], list(op.operands), op)
        for result, value in zip(op.results, end.operands, strict=True):
            result.replace_all_uses_with(value)
        copy.erase()
        op.erase()

    def _on_a_device(self, op: ir.Operation, params: Mapping[str, Any]) -> str:
        """A module with a region that computes what the call does on the device."""
        call = params["call"]
        region = _region_around(op)
        mesh = AbstractMesh(
            tuple(size for _, size in region.axes), tuple(name for name, _ in region.axes)
        )
        inputs = _whole(op.operands, region.operands, call.in_avals, region, mesh)
        results = _whole(op.results, region.results, call.out_avals, region, mesh)
        if region is not _ONE_DEVICE:
            specs = [tuple(each.sharding.spec for each in side) for side in (inputs, results)]
            compute = jax.shard_map(
                _partitioned(params, mesh, inputs, results),
                mesh=mesh,
                in_specs=specs[0],
                out_specs=specs[1],
                check_vma=False,
            )
        elif [each.shape for each in inputs] == [aval.shape for aval in call.in_avals]:
            compute = jaxpr_as_fun(call)
        else:
            compute = _partitioned(params, mesh, inputs, results)
        return self._lowered(compute, inputs)


def _partitioned(
    params: Mapping[str, Any],
    mesh: AbstractMesh,
    inputs: Sequence[jax.ShapeDtypeStruct],
    results: Sequence[jax.ShapeDtypeStruct],
) -> Any:
    """The function of tiles that a function's `partition` makes."""
    in_tree, out_tree = params["in_tree"], params["out_tree"]
    _, local, made, wanted = params["partition"](
        *params["static_args"], mesh, in_tree.unflatten(inputs), out_tree.unflatten(results)
    )
    for what, tree, planned, asked in (
        ("operand", in_tree, inputs, wanted),
        ("result", out_tree, results, made),
    ):
        for number, (each, other) in enumerate(
            zip(planned, tree.flatten_up_to(asked), strict=True)
        ):
            if not each.sharding.is_equivalent_to(other, len(each.shape)):
                raise UserError(
                    f"custom_partitioning: expected {what} {number} as its rule says, "
                    f"{each.sharding.spec}, found {other.spec} from its partition function"
                )
    return lambda *tiles: tuple(jax.tree.leaves(local(*in_tree.unflatten(tiles))))


def _is_unknown(op: ir.Operation) -> bool:
    """Whether only the function around a call says how it may be split. Of cuDNN's attention JAX's
    rule says less than the call."""
    return call_rule(op) is None and not is_attention(op) and not is_marker(op)


def _region_around(op: ir.Operation) -> ManualRegion:
    parent = op.parent
    while parent is not None and parent.operation.name != MANUAL:
        parent = parent.operation.parent
    return _ONE_DEVICE if parent is None else read_region(parent.operation)


def _whole(
    values: Sequence[ir.Value],
    shardings: Sequence[Sharding],
    avals: Sequence[Any],
    region: ManualRegion,
    mesh: AbstractMesh,
) -> list[jax.ShapeDtypeStruct]:
    """The types of values for all devices of the region that the call stands in."""
    sizes = dict(region.axes)
    types = []
    for number, (value, aval) in enumerate(zip(values, avals, strict=True)):
        local = shape_of(value)
        dims = shardings[number].dims if shardings else ((),) * len(local)
        counts = [prod(sizes[axis] for axis in axes) for axes in dims]
        spec = PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in dims))
        shape = tuple(extent * count for extent, count in zip(local, counts, strict=True))
        types.append(jax.ShapeDtypeStruct(shape, aval.dtype, sharding=NamedSharding(mesh, spec)))
    return types


def _number_channels(module: ir.Module) -> None:
    """One number for each collective: what was lowered apart has the same ones."""
    for number, op in enumerate(
        (op for op in operations(module.operation) if _CHANNEL in op.attributes), start=1
    ):
        kind = stablehlo.ChannelHandle(op.attributes[_CHANNEL]).channel_type
        op.attributes[_CHANNEL] = stablehlo.ChannelHandle.get(number, kind)
