"""Planning after a plan file: its options under those of the user, and whether it is about the model at hand."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from shardopt.frontend.plan import PlanOptions
from shardopt.planfile.checks import plan_mistakes
from shardopt.planfile.parts import PlanFile
from shardopt.planfile.plan_file import load_plan_file
from shardopt.support.errors import UserError
from shardopt.support.readers import INDEX, NOT_NEGATIVE, Flag, Reader, Text, suggestion
from shardopt.support.records import Nullable

# What a file does not decide.
_OF_THE_USER = ("plan",)


def options_after(path: str, asked: Mapping[str, Any]) -> PlanOptions:
    """The options of a plan file, with those that the user asked for instead.

    Raises UserError that names the field of the file.
    """
    plan = load_plan_file(path)
    options, mistakes = read_options(plan)
    mistakes = (*mistakes, *plan_mistakes(plan, plan.cluster))
    if mistakes:
        raise UserError(f"{path}: {mistakes[0]}")
    if plan.cluster is not None:
        options["cluster"] = ""  # the passes take it from the file
    options.update(asked)
    if not options.get("cluster") and plan.cluster is None:
        raise UserError(f"{path}: expected field 'cluster' or 'options.cluster', or the option --cluster, found none")
    return PlanOptions(**{"cluster": "", **options, "plan": path})


def read_options(plan: PlanFile) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The options of the file, and what is wrong with them."""
    hints = get_type_hints(PlanOptions)
    known = [option.name for option in fields(PlanOptions) if option.name not in _OF_THE_USER]
    found: dict[str, Any] = {}
    mistakes: list[str] = []
    for name, value in plan.options.items():
        if name not in known:
            mistakes.append(f"unknown field 'options.{name}'{suggestion(name, known)}")
        else:
            found[name] = _reader(hints[name]).read(value, f"options.{name}", mistakes)
    return found, tuple(mistakes)


def _reader(hint: Any) -> Reader:
    if get_origin(hint) is Literal:
        return Text(choices=get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return Nullable(_reader(next(arm for arm in get_args(hint) if arm is not type(None))))
    readers: dict[Any, Reader] = {bool: Flag(), int: INDEX, float: NOT_NEGATIVE, str: Text("a text", may_be_empty=True)}
    return readers[hint]


def check_model(path: str, model: bytes) -> None:
    """Raises UserError where a plan file was made for another model than this."""
    from shardopt.frontend.plan_document import fingerprint

    made_for = load_plan_file(path).model
    if made_for is not None and made_for.fingerprint != (found := fingerprint(model)):
        raise UserError(
            f"{path}: field 'model.fingerprint': the plan was made for another model, {made_for.fingerprint}; "
            f"this one is {found} (without the field 'model' a plan is tried on any)"
        )
