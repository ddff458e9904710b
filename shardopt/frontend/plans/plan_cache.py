"""Whole plans in the cache: the same model, options and files give the same plan, and the same
warnings and remarks.

The key is made of the bytes of the model and its name in messages, of all options, of the cluster,
and of the content of every file that an option names (profiles, constraints); the versions of this
package and of the solvers come on top (`shardopt.caching`). An entry is a zip archive of the
modules, with the summary left out: it is read from the module."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardopt.caching.store import Store, key_of
from shardopt.frontend.calls.sources import source_bytes
from shardopt.frontend.plans.loaded_modules import LoadedModules
from shardopt.frontend.plans.plan import Plan
from shardopt.hardware.cluster_file import content_of, is_file, load_cluster
from shardopt.options.plan_options import PlanOptions
from shardopt.pipeline.dumps import DUMP_VARIABLE
from shardopt.support.errors import UserError

if TYPE_CHECKING:
    from shardopt.ir.diagnostics import Diagnostic

KIND = "plans"

_MODULE, _ORIGINAL, _FORMS, _SAID = "module", "original", "forms/", "diagnostics.json"
# Fast: a plan holds the module nine times over, and the archive is a fifth of that.
_LEVEL = 1


def plan_key(source: bytes | str | os.PathLike[str], name: str, options: PlanOptions) -> str | None:
    """The key of a plan; None where it cannot be told before planning, or where somebody watches
    the phases."""
    if os.environ.get(DUMP_VARIABLE):
        return None
    try:
        files: list[str | bytes] = [content_of(load_cluster(options.cluster))]
        for field, value in sorted(asdict(options).items()):
            for path in _files_named(value):
                files += [field, path.read_bytes()]
    except (UserError, OSError):  # the phase that reads it will say so
        return None
    request = json.dumps({"options": asdict(options), "name": name}, sort_keys=True)
    return key_of("plan", source_bytes(source), request, *files)


def _files_named(value: object) -> list[Path]:
    """The file that the value of an option names, itself or as a plan directory."""
    if not isinstance(value, str) or not value:
        return []
    return [Path(name) for name in (value, os.path.join(value, "plan.json")) if is_file(name)]


def put_plan(store: Store, key: str, plan: Plan, diagnostics: list[Diagnostic]) -> None:
    """Keep a plan and what was said while it was made."""
    data = BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        archive.writestr(_MODULE, plan.module)
        archive.writestr(_ORIGINAL, plan.original)
        for number, (phase, form) in enumerate(plan.forms, 1):
            archive.writestr(f"{_FORMS}{number}-{phase}", form)
        archive.writestr(_SAID, json.dumps([asdict(diagnostic) for diagnostic in diagnostics]))
    store.put(KIND, key, data.getvalue())
    store.trim()


def get_plan(store: Store, key: str, options: PlanOptions) -> tuple[Plan, list[Diagnostic]] | None:
    """The plan of `put_plan`, or None."""
    from shardopt.report.plan_summary import summarize

    data = store.get(KIND, key)
    if data is None:
        return None
    with zipfile.ZipFile(BytesIO(data)) as archive:
        parts = {entry: archive.read(entry) for entry in archive.namelist()}
    forms = tuple(
        (entry.partition("-")[2], form) for entry, form in parts.items() if entry.startswith(_FORMS)
    )
    with (loaded := LoadedModules()) as modules:
        summary = summarize(modules[parts[_MODULE]])
    diagnostics = [_diagnostic(item) for item in json.loads(parts[_SAID])]
    plan = Plan(parts[_MODULE], parts[_ORIGINAL], forms, summary, options, loaded=loaded)
    return plan, diagnostics


def _diagnostic(item: dict[str, Any]) -> Diagnostic:
    from shardopt.ir.diagnostics import Diagnostic, Position

    notes = tuple(map(_diagnostic, item["notes"]))
    return Diagnostic(**{**item, "position": Position(**item["position"]), "notes": notes})
