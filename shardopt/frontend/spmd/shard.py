"""One mesh without stages: from a `jax.export.Exported` to a sharded one that runs under plain
`jax.jit`.

    sharded = shardopt.shard(exported, "cpu-test:1x4", mesh="2x2")
    args, kwargs = shardopt.input_shardings(sharded)
    step = jax.jit(sharded.call, in_shardings=args)

The private fields of `Exported` (`_…`) are touched here and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack, cast

import jax
import numpy as np
from jax import export
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from shardopt.frontend.calls.arguments import options_of
from shardopt.frontend.calls.phase_options import INTRA, option_text, phase_text
from shardopt.frontend.calls.python_words import errors_for_python, python_handler
from shardopt.frontend.calls.state_pairs import state_pairs
from shardopt.ir.jax_versions import keys_can_be_placed, named_shardings_flag
from shardopt.mesh.mesh import Mesh, Sharding, mesh_text, parse_mesh
from shardopt.options.keywords import ShardKeywords
from shardopt.options.signatures import shows_options
from shardopt.options.table import rows
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.frontend.plans.plan import Plan
    from shardopt.ir.diagnostics import Handler


@shows_options("shard")
def shard(
    exported: export.Exported,
    cluster: str | os.PathLike[str],
    mesh: str,
    *,
    handler: Handler | None = None,
    **options: Unpack[ShardKeywords],
) -> export.Exported:
    """Choose a sharding for every value of an exported function, for one logical mesh such as
    "2x2".

    The result takes and returns the same arrays and is meant for as many devices as the mesh has.
    Results that are arguments of the next step, told by donation or by equal trees, have the
    shardings of these arguments. `mesh` may name its axes: "data:2,model:2".

    The `options` are those of docs/reference/options.md that matter to one mesh: `batch_args` to
    methods that split the batch; `annotations` and `constraints` say what is demanded of the
    shardings. With annotations="keep", what the function was exported with (`in_shardings`,
    `with_sharding_constraint`) is obeyed as far as it fits the mesh.

    `handler` gets warnings and remarks. The result has no VJP. Raises UserError.
    """
    logical = parse_mesh(mesh)
    check_exported(exported)
    options_text = phase_text(options_of("shard", cluster, options, exported), INTRA)
    whole = automatic_mesh(logical.shape, logical.axis_names)
    with errors_for_python():
        return shard_over(exported, logical, whole, options_text, python_handler(handler))


def automatic_mesh(shape: tuple[int, ...], axis_names: tuple[str, ...]) -> AbstractMesh:
    """A mesh along whose axes the module says how values are split, and not their types: the
    default kind of axes is another one in jax 0.11 and later."""
    return AbstractMesh(shape, axis_names, axis_types=(AxisType.Auto,) * len(shape))


def shard_over(
    exported: export.Exported,
    logical: Mesh,
    whole: AbstractMesh,
    options: str,
    handler: Handler | None = None,
) -> export.Exported:
    """As `shard`, over `whole`, of which `logical` has the axes that can split anything; `options`
    are those of the pipeline, as text."""
    text = f"mesh={option_text(mesh_text(logical))} sharding-format=sdy {options}"
    artifact, inputs, outputs = _run(
        exported, f"builtin.module(shardopt-intra{{{text}}})", whole, handler
    )
    kept = dict(zip(exported.module_kept_var_idx, inputs, strict=True))
    return replace(
        exported,
        mlir_module_serialized=artifact,
        nr_devices=logical.size,
        **named_shardings_flag(export.Exported),
        _in_named_shardings=tuple(
            _named(kept.get(k), whole, aval) for k, aval in enumerate(exported.in_avals)
        ),
        _out_named_shardings=tuple(
            _named(sharding, whole, aval)
            for sharding, aval in zip(outputs, exported.out_avals, strict=True)
        ),
        in_shardings_hlo=(None,) * len(exported.in_avals),
        out_shardings_hlo=(None,) * len(exported.out_avals),
        _get_vjp=None,  # it would differentiate the unsharded function
    )


def input_shardings(
    exported: export.Exported, devices: Sequence[jax.Device] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a function from `shard` as trees of `NamedSharding`: (positional, keyword).

    `devices` are those of the mesh in row-major order, by default the first of `jax.devices()`.
    Raises UserError when there are too few."""
    if not isinstance(exported, export.Exported):
        raise UserError(f"expected a jax.export.Exported, found {type(exported).__name__}")
    used = next(
        (s.mesh for s in exported._in_named_shardings if s is not None and s.mesh.size > 0), None
    )
    if used is None:
        raise UserError(
            f"function '{exported.fun_name}' has no input shardings: expected a result of "
            "shardopt.shard"
        )
    available = list(jax.devices() if devices is None else devices)
    if len(available) < used.size:
        raise UserError(
            f"function '{exported.fun_name}' is sharded over {used.size} devices, found "
            f"{len(available)}"
        )
    mesh = jax.sharding.Mesh(
        np.array(available[: used.size]).reshape(used.axis_sizes), used.axis_names
    )
    replicated = NamedSharding(mesh, PartitionSpec())  # of arguments that the module has dropped
    args, kwargs = jax.tree.unflatten(
        exported.in_tree, [s or replicated for s in exported.in_shardings_jax(mesh)]
    )
    return args, kwargs


def exported_of(plan: Plan) -> export.Exported:
    """See `Plan.to_exported`."""
    summary = plan.summary
    if not isinstance(plan.source, export.Exported):
        raise UserError(
            "to_exported needs a plan that shardopt.optimize made from a jax.export.Exported"
        )
    if len(summary.stages) != 1 or summary.num_microbatches != 1:
        raise UserError(
            "a pipeline is no single function: expected a plan with one stage and one microbatch, "
            f"found {len(summary.stages)} stages and {summary.num_microbatches} microbatches; "
            "plan with stages=1"
        )
    options = plan.options
    mesh = "x".join(map(str, summary.stages[0].logical_shape))
    taken = {
        row.field: getattr(options, row.field)
        for row in rows(type(options))
        if "shard" in row.functions
    }
    return shard(plan.source, options.cluster, mesh, **cast("ShardKeywords", taken))


def check_exported(exported: Any) -> None:
    if not isinstance(exported, export.Exported):
        raise UserError(f"expected a jax.export.Exported, found {type(exported).__name__}")
    name = f"function '{exported.fun_name}'"
    if not all(isinstance(extent, int) for aval in exported.in_avals for extent in aval.shape):
        raise UserError(f"{name} has symbolic dimensions: expected an export with concrete shapes")
    if len(exported.platforms) != 1:
        raise UserError(
            f"{name} is exported for {len(exported.platforms)} platforms: expected exactly one"
        )
    if exported.ordered_effects:
        raise UserError(f"{name} has ordered effects, which cannot be sharded")


def _run(
    exported: export.Exported, pipeline: str, whole: AbstractMesh, handler: Handler | None
) -> tuple[bytes, tuple[Sharding, ...], tuple[Sharding, ...]]:
    """The sharded artifact, and the shardings of the module's arguments and results."""
    from jaxlib.mlir.dialects import stablehlo

    from shardopt.dialect.donation import write_replacements
    from shardopt.forms.shardy_form import declare_axes, signature_shardings
    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module
    from shardopt.ir.native import verify
    from shardopt.ir.rewriting import functions, symbol_name
    from shardopt.ir.trial import made_here
    from shardopt.pipeline.manager import run_pipeline

    with make_context() as context:
        data = made_here(bytes(exported.mlir_module_serialized))
        module = load_module(data, context, name=exported.fun_name)
        [main] = [function for function in functions(module) if symbol_name(function) == "main"]
        write_replacements(main, _replacements(exported))
        run_pipeline(module, pipeline, handler=handler)
        [main] = functions(module)
        inputs = signature_shardings(main, "arg_attrs")
        outputs = signature_shardings(main, "res_attrs")
        declare_axes(module, tuple(zip(whole.axis_names, whole.axis_sizes, strict=True)))
        verify(module)
        # The compatibility that jax.export itself gives.
        version = stablehlo.get_version_from_compatibility_requirement(
            stablehlo.StablehloCompatibilityRequirement.WEEK_4
        )
        artifact = stablehlo.serialize_portable_artifact(module, version, allow_other_dialects=True)
        return artifact, inputs, outputs


def _replacements(exported: export.Exported) -> dict[int, int]:
    """argument of the module -> the result that is this argument in the next step."""
    positions = {number: position for position, number in enumerate(exported.module_kept_var_idx)}
    pairs = state_pairs(
        jax.tree.unflatten(exported.in_tree, exported.in_avals),
        jax.tree.unflatten(exported.out_tree, exported.out_avals),
    )
    return {positions[k]: result for k, result in pairs.items() if k in positions}


def _named(sharding: Sharding | None, mesh: AbstractMesh, aval: Any) -> NamedSharding | None:
    """None, for an argument that the module has dropped, leaves the choice to the caller. The raw
    data of a typed key has dimensions that the key has not."""
    is_key = jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)
    if sharding is None or (is_key and not keys_can_be_placed()):
        return None
    return NamedSharding(
        mesh, PartitionSpec(*(axes or None for axes in sharding.dims[: aval.ndim]))
    )
