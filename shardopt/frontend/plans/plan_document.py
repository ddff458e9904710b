"""What `plan.json` says: the plan as a plan file that gives the very same plan again
(`docs/guide/plan-file.md`)."""

from __future__ import annotations

from hashlib import sha256
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from jaxlib.mlir import ir

from shardopt import __version__
from shardopt.dialect.choices import read_choices
from shardopt.dialect.cluster import read_cluster
from shardopt.dialect.donation import argument_attributes
from shardopt.dialect.mpmd import LAYER, read_methods
from shardopt.dialect.prediction import PlannedPrediction, read_prediction
from shardopt.dialect.program import StepProgram, read_program
from shardopt.dialect.schedule import read_schedule
from shardopt.hardware.cluster import Cluster
from shardopt.hardware.cluster_file import describe
from shardopt.ir.io import module_bytecode
from shardopt.ir.native import run_native
from shardopt.ir.rewriting import copy_of
from shardopt.options.plan_options import PlanOptions
from shardopt.options.table import rows
from shardopt.planfile.parts import PREDICTED_SECONDS, VERSION, runs_of
from shardopt.planfile.plan_file import read_plan_file

if TYPE_CHECKING:
    from shardopt.frontend.plans.plan import Plan
    from shardopt.report.plan_summary import PlanSummary, StageRow

OF_BYTECODE = "sha256:"  # how a fingerprint of version 2 begins

# Figures of a stage that its other fields do not hold.
_PREDICTED = (
    "forward_seconds",
    "backward_seconds",
    "outside_seconds",
    "peak_bytes",
    "collective_bytes",
    "sent_bytes",
)


def plan_document(plan: Plan) -> dict[str, Any]:
    """The values of the file."""
    forms, summary = dict(plan.forms), plan.summary
    with plan.loaded as modules:
        clustered = read_program(modules[forms["cluster"]])
        sharded = modules[forms["shard"]]
        program = read_program(sharded)
        cluster, choices = read_cluster(sharded), read_choices(program.main)
        prediction = read_prediction(program.loop)
        methods = read_methods(program.loop, len(summary.stages))
        layers = _layers(clustered)
        # Tasks in an order of its own have no name that says it: such a schedule is built again.
        text = read_schedule(read_program(modules[plan.module]).loop)
        named = text is not None and not text.rows
        model = fingerprint(modules[plan.original])
    schedule = summary.schedule if named else plan.options.schedule
    # Other pipelines are copies of the first, and further slices go through the same stages.
    rows = [(summary.stages[stage], methods[stage]) for stage in summary.model_stages]
    document = {
        "version": VERSION,
        "made_by": {"shardopt": __version__, "jaxlib": version("jaxlib")},
        "model": {"fingerprint": model},
        "options": {
            **kept_options(plan.options),
            "microbatches": summary.num_microbatches,
            "schedule": schedule,
            **_token_slices(summary),
        },
        "cluster": describe(cluster),
        "layers": layers,
        # What stages of one mesh decide together stands in the first of them.
        "stages": [
            _stage(row, cluster, method, choices.pop(row.mesh, None)) for row, method in rows
        ],
    }
    decisions = read_plan_file(document)[0].decisions()
    return {**document, "predicted": _predicted(summary, prediction, decisions)}


def _token_slices(summary: PlanSummary) -> dict[str, str]:
    """The lengths, whoever chose them; of one slice its number, as one number is that of slices."""
    lengths = summary.token_slices
    if not lengths:
        return {}
    return {"token_slices": ",".join(map(str, lengths)) if len(lengths) > 1 else "1"}


def kept_options(options: PlanOptions) -> dict[str, Any]:
    """The options that say something about the plan which its other parts do not spell out."""
    kept = {}
    for row in rows(type(options)):
        value = getattr(options, row.field)
        if row.in_file == "always" or (row.in_file == "changed" and value != row.default):
            kept[row.field] = value
    return kept


def fingerprint(model: ir.Module) -> str:
    """Of the operations of a model, whatever their locations, the format of the file, and the
    version of jaxlib: of their text, since bytecode names the compiler that wrote it."""
    text = str(model.operation.get_asm(enable_debug_info=False))
    return f"text-sha256:{sha256(text.encode()).hexdigest()}"


def bytecode_fingerprint(model: ir.Module) -> str:
    """As files of version 2 have it; equal in one version of jaxlib only."""
    stripped = copy_of(model)
    run_native(stripped, "builtin.module(strip-debuginfo)")
    return f"{OF_BYTECODE}{sha256(module_bytecode(stripped)).hexdigest()}"


def _layers(program: StepProgram) -> dict[str, Any]:
    """Of a module in the clustered form."""
    body, prologue, epilogue = (
        [ir.IntegerAttr(op.attributes[LAYER]).value for op in ops]
        for ops in (program.body_ops, program.prologue, program.epilogue)
    )
    arguments = [
        ir.IntegerAttr(attributes[LAYER]).value for attributes in argument_attributes(program.main)
    ]
    return {
        "count": max((*body, 0)) + 1,
        "body": runs_of(body),
        "prologue": runs_of(prologue),
        "epilogue": runs_of(epilogue),
        "arguments": runs_of(arguments),
    }


def _stage(row: StageRow, cluster: Cluster, method: str, shardings: Any) -> dict[str, Any]:
    layers = sorted(int(name.removeprefix("layer_")) for name in row.layers)
    hosts = len({cluster.host_of(device) for device in row.devices})
    return {
        "layers": [layers[0], layers[-1]],
        "group": cluster.groups[cluster.group_index(row.devices[0])].name,
        "submesh": f"{hosts}x{len(row.devices) // hosts}",
        "logical_shape": "x".join(map(str, row.logical_shape)),
        "devices": list(row.devices),
        "recompute": row.recompute,
        "offload": row.offload,
        "intra_op": method,
        "predicted": {name: getattr(row, name) for name in _PREDICTED},
        "shardings": shardings,
    }


def _predicted(
    summary: PlanSummary, prediction: PlannedPrediction | None, decisions: str
) -> dict[str, Any]:
    """Of the finished plan; and what the stage phase predicted, with a hash of the decisions it is
    about."""
    figures: dict[str, Any] = {
        "makespan_seconds": summary.makespan_seconds,
        "bubble_fraction": summary.bubble_fraction,
    }
    figures["schedule"] = summary.schedule
    if prediction is None:
        return figures
    seconds = {name: getattr(prediction, name) for name in PREDICTED_SECONDS}
    return {**figures, "planned_for": prediction.schedule, **seconds, "decisions": decisions}
