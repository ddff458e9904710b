"""Planning after a plan file: its options under those of the user, and whether it is about the
model at hand."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from shardopt.options.plan_options import PlanOptions
from shardopt.planfile.checks import plan_errors
from shardopt.planfile.option_fields import read_options
from shardopt.planfile.plan_file import load_plan_file
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from jaxlib.mlir import ir


def options_after(path: str, overrides: Mapping[str, Any]) -> PlanOptions:
    """The options of a plan file, with those that the user asked for instead.

    Raises UserError that names the field of the file.
    """
    plan = load_plan_file(path)
    options, wrong = read_options(plan)
    errors = (*wrong, *plan_errors(plan, plan.cluster))
    if errors:
        raise UserError(f"{path}: {errors[0]}")
    if plan.cluster is not None:
        options["cluster"] = ""  # the passes take it from the file
    if plan.made_by and "split_stacks" not in options:
        options["split_stacks"] = False  # the numbers of arguments are those of whole stacks
    options.update(overrides)
    if not options.get("cluster") and plan.cluster is None:
        raise UserError(
            f"{path}: expected field 'cluster' or 'options.cluster', or the option "
            "--cluster, found none"
        )
    return PlanOptions(**{"cluster": "", **options, "plan": path})


def check_model(path: str, model: ir.Module) -> None:
    """Raises UserError where a plan file was made for another model than this.

    Nothing is known of a file of version 2 that another version of jaxlib has written."""
    from shardopt.frontend.plans.plan_document import OF_BYTECODE, bytecode_fingerprint, fingerprint

    plan = load_plan_file(path)
    made_for = plan.model
    if made_for is None:
        return
    is_old = made_for.fingerprint.startswith(OF_BYTECODE)
    if is_old and plan.made_by.get("jaxlib") != version("jaxlib"):
        return
    actual = (bytecode_fingerprint if is_old else fingerprint)(model)
    if made_for.fingerprint != actual:
        raise UserError(
            f"{path}: field 'model.fingerprint': the plan was made for another model, "
            f"{made_for.fingerprint}; "
            f"this one is {actual} (without the field 'model' a plan is tried on any)"
        )
