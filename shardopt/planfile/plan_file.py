"""The plan file, `plan.json`: what was decided, so that it can be applied a second time, edited, or
written by hand in parts.

Every part may be missing, and what is missing is planned. `docs/guide/plan-file.md` describes the
fields; `schema()` of `shardopt.planfile.fields` is the JSON schema in `shardopt/schemas`. What the
parts say of each other and of the cluster is checked by `shardopt.planfile.checks`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardopt.planfile.fields import PLAN
from shardopt.planfile.parts import VERSION, PlanFile
from shardopt.planfile.version_2 import upgraded
from shardopt.support.documents import errors_of, parse_text, read_text
from shardopt.support.errors import UserError


def read_plan_file(value: Any) -> tuple[PlanFile, tuple[str, ...]]:
    """The plan and what is wrong with the fields; where something is, the plan must not be used.
    Files of version 2 are read as `upgraded` says."""
    value = upgraded(value)
    version = value.get("version") if isinstance(value, dict) else None
    # Whatever else another version says means other things: its fields are not looked at.
    if isinstance(value, dict) and version != VERSION:
        return PlanFile(VERSION), (
            f"expected field 'version' to be {VERSION} or 2, found {version!r:.80}",
        )
    return errors_of(PLAN, value)


def load_values(path: str) -> Any:
    """The values of a plan file, or of `plan.json` in a plan directory, in the fields of the
    present version. Raises UserError."""
    file = Path(path) / "plan.json" if Path(path).is_dir() else Path(path)
    return upgraded(parse_text(read_text(file, "plan file"), str(file)))


def load_plan_file(path: str) -> PlanFile:
    """Raises UserError with the file and the first error."""
    plan, errors = read_plan_file(load_values(path))
    if errors:
        raise UserError(f"{path}: {errors[0]}")
    return plan
