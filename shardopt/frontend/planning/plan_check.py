"""`shardopt plan --check-plan`: everything that is wrong with a plan file, by itself and for a
model."""

from __future__ import annotations

from shardopt.frontend.plans.from_plan_file import options_after
from shardopt.hardware.cluster_file import load_cluster
from shardopt.planfile.checks import plan_errors
from shardopt.planfile.option_fields import read_options
from shardopt.planfile.plan_file import load_values, read_plan_file
from shardopt.support.errors import UserError


def check_plan(path: str, model: str | None = None) -> tuple[str, ...]:
    """One message an error. With a model, a file without errors is applied to it, which finds
    the first of those that need one: another fingerprint, numbers of operations, shardings that do
    not divide, memory of a stage.

    Raises UserError for files that cannot be read.
    """
    plan, errors = read_plan_file(load_values(path))
    if errors:
        return errors
    cluster, named = plan.cluster, plan.options.get("cluster")
    _, wrong = read_options(plan)
    if cluster is None and isinstance(named, str) and named:
        try:
            cluster = load_cluster(named)
        except UserError as error:
            wrong = (*wrong, f"field 'options.cluster': {error}")
    messages = (*wrong, *plan_errors(plan, cluster))
    return messages if messages or model is None else _applied(path, model)


def _applied(path: str, model: str) -> tuple[str, ...]:
    from shardopt.frontend.planning.make_plan import make_plan

    try:
        make_plan(model, options_after(path, {}), cache=False)
    except UserError as error:
        return (str(error).removeprefix(f"{path}: "),)
    return ()
