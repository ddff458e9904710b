"""Write the pages, pictures and schemas that are made from the code: `python -m scripts.docs`.

With `--check` nothing is written; the exit code is 1 if a page is not what would be written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.doc_options import HEADER, keywords_module, option_rows
from scripts.doc_pictures import resharding_pictures
from shardopt.support.errors import UserError
from shardopt.tools.common import ToolParser, run_tool

if TYPE_CHECKING:
    from shardopt.passes.base import Pass
    from shardopt.pipeline.phases import Phase

ROOT = Path(__file__).parents[1]
# The others look like one of these.
_PICTURES = (
    "gpipe",
    "1f1b",
    "eager-1f1b",
    "interleaved",
    "zero-bubble",
    "zb-v",
    "v-half",
    "v-min",
    "dualpipe-v",
    "chimera",
    "terapipe",
)
_COMMAND = "python -m scripts.docs"
_LIT = "tests/lit/passes"

# Verifiers whose module is not called `<form>_form`, and checks that several verifiers share.
_VERIFIERS = {"exported": "exported_verify"}
_SHARED: tuple[tuple[str, str], ...] = (
    ("Attributes of other types than above, in every form", "shardopt.forms.attribute_types"),
    ("Donated arguments, in every form", "shardopt.dialect.donation"),
    ("The loop, in every form from `microbatched` on", "shardopt.dialect.program"),
    (
        "What the loop carries and the rows that it takes, from `microbatched` on",
        "shardopt.forms.microbatch_rows",
    ),
    ("The cluster of the module, from `staged` on", "shardopt.dialect.cluster"),
    ("Costs and other figures, from `staged` on", "shardopt.forms.figures"),
    ("Topologies and types, from `staged` on", "shardopt.dialect.mpmd"),
    ("Meshes and the values on them, from `staged` on", "shardopt.forms.mesh_checks"),
    ("What is unreduced, from `sharded` on", "shardopt.forms.unreduced_proof"),
    ("Code for one device in a sharded plain module", "shardopt.forms.manual_code"),
    ("Sharded plain modules in Shardy's form", "shardopt.forms.shardy_form"),
    ("Sharded plain modules as the program of one device", "shardopt.forms.device_form"),
    ("Resharding plans, from `transferred` on", "shardopt.forms.reshard_steps"),
    ("The order of tasks, from `scheduled` on", "shardopt.schedule.validate"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 when `--check` finds a stale page."""
    parser = ToolParser(
        prog=_COMMAND, description="Write the pages of docs/ that are made from the code."
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing, and fail if a page is out of date"
    )
    options = parser.parse_args(argv)
    return run_tool(_COMMAND, lambda: _run(options))


def schedule_pictures(folder: Path) -> dict[Path, str]:
    """The timelines of docs/concepts/schedules.md."""
    from shardopt.report.timeline_svg import timeline_svg
    from shardopt.schedule.even_pipeline import EvenPipeline

    pipeline = EvenPipeline(4, 8, activation_bytes=1 << 30)
    return {
        folder / "concepts" / "schedules" / f"{name}.svg": timeline_svg(pipeline.simulate(name))
        for name in _PICTURES
    }


def _run(options: argparse.Namespace) -> None:
    folder = ROOT / "docs"
    if not folder.is_dir():
        raise UserError(f"expected a source tree with the directory '{folder}', found none")
    pages = {
        folder / "reference" / "passes.md": passes_page(),
        folder / "reference" / "dialect.md": dialect_page(),
        folder / "reference" / "options.md": options_page(),
        ROOT / "shardopt" / "options" / "keywords.py": keywords_module(),
        **schemas(),
        **schedule_pictures(folder),
        **resharding_pictures(folder),
    }
    if not options.check:
        for path, text in pages.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return
    stale = [
        path
        for path, text in pages.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if stale:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        raise UserError(f"out of date: {names}; run {_COMMAND}")


# ---- passes ----


def passes_page() -> str:
    """`docs/reference/passes.md`: the phases in order with their steps and options, then every
    pass."""
    from shardopt.passes.registry import PASSES, pass_class
    from shardopt.passes.remark_kinds import REMARK_KINDS
    from shardopt.pipeline.phases import PHASES, PIPELINES

    blocks = [
        "# Phases and passes",
        _generated(),
        "Each of these is a flag of `shardopt-opt` (`--shardopt-inline-calls`, "
        '`--shardopt-stage="num-stages=2"`) and a step of a `--pass-pipeline`; phases are also the '
        "ends of `--from` and `--to`. Options are written as `name=value` between braces or behind "
        "the flag. A phase takes the options of its passes.",
        "## Phases",
        _table(("phase", "", "form afterwards"), map(_phase_row, PHASES)),
    ]
    for phase in (*PHASES, *PIPELINES):
        blocks += _phase_blocks(phase)
    blocks.append("## Passes")
    for name in PASSES:
        blocks += _pass_blocks(pass_class(name))
    kinds = ((f"`{kind}`", _sentence(text)) for kind, text in REMARK_KINDS.items())
    blocks += ["## Remarks", "What `--remarks=KIND` selects.", _table(("kind", ""), kinds)]
    return _page(blocks)


def _phase_row(phase: Phase) -> tuple[str, str, str]:
    form = _form_of(phase)
    return f"[{phase.name}](#shardopt-{phase.name})", phase.summary, f"[{form}](dialect.md#{form})"


def _form_of(phase: Phase) -> str:
    """The form a phase leaves, which its last step verifies."""
    return _forms_of(phase)[-1]


def _forms_of(phase: Phase) -> list[str]:
    """The forms that steps of a phase verify, in order."""
    prefix = "shardopt-verify-"
    return [str(step).removeprefix(prefix) for step in phase.steps if str(step).startswith(prefix)]


def _phase_blocks(phase: Phase) -> list[str]:
    from shardopt.passes.options import option_specs
    from shardopt.passes.registry import PASSES, PREFIX, pass_class
    from shardopt.pipeline.phases import When

    steps: list[str] = []
    rows: list[tuple[str, ...]] = []
    for step in phase.steps:
        names, switch = (step.steps, step.switch) if isinstance(step, When) else ((step,), "")
        if switch:
            rows.append((f"`{switch}`", "true or false", "`false`", "run the optional step", ""))
        for name in names:
            shown = f"[{name}](#{name})" if name in PASSES else f"`{name}`"
            steps.append(f"{shown} (with `{switch}=true`)" if switch else shown)
            specs = option_specs(pass_class(name)) if name in PASSES else ()
            rows += [
                (f"`{s.name}`", s.type_text, f"`{s.default_text}`", s.help, f"[{name}](#{name})")
                for s in specs
            ]
    blocks = [
        f"### {PREFIX}{phase.name}",
        _sentence(phase.summary),
        "\n".join(f"{k}. {s}" for k, s in enumerate(steps, 1)),
    ]
    return [*blocks, _table(("option", "type", "default", "", "of"), rows)] if rows else blocks


def _pass_blocks(cls: type[Pass]) -> list[str]:
    from scripts.doc_sources import docstring, first_arguments
    from shardopt.passes.options import option_specs

    module = import_module(cls.__module__)
    head, body = docstring(module)
    blocks = [f"### {cls.name}", head, body]
    specs = option_specs(cls)
    if specs:
        rows = [
            (f"`{spec.name}`", spec.type_text, f"`{spec.default_text}`", spec.help)
            for spec in specs
        ]
        blocks.append(_table(("option", "type", "default", ""), rows))
    facts = [f"Runs on: `{cls.anchor}`"]
    for what, method in (("Statistics", "statistic"), ("Remarks", "remark")):
        names = first_arguments(module, method)
        if names:
            facts.append(f"{what}: {', '.join(f'`{name}`' for name in names)}")
    facts.append(f"Tests: {_tests(cls.name.removeprefix('shardopt-'))}")
    return [*blocks, "\n".join(f"* {fact}" for fact in facts)]


def _tests(words: str) -> str:
    """Links to the lit tests of a pass: `<verb>-<object>.mlir`, then those with further words."""
    paths = [ROOT / _LIT / f"{words}.mlir", *sorted((ROOT / _LIT).glob(f"{words}-*.mlir"))]
    return ", ".join(f"[{path.stem}](../../{_LIT}/{path.name})" for path in paths)


# ---- dialect ----


def dialect_page() -> str:
    """`docs/reference/dialect.md`: every attribute of ours, then the forms with what their
    verifiers say."""
    from shardopt.forms.vocabulary import ATTRIBUTES, INPUT
    from shardopt.pipeline.phases import PHASES

    blocks = [
        "# What the IR says",
        _generated(),
        "The IR is StableHLO inside operations of the `mpmd` dialect, both registered by the stock "
        "`jaxlib`. What a pass decides stands in the attributes below, so any pass can run alone "
        "on text. All values are builtin, `mpmd` or `sdy` attributes: they survive bytecode "
        "and other tools.",
        "## Attributes",
    ]
    for attribute in ATTRIBUTES:
        writer = attribute.writer
        by = "the model as it is read" if writer == INPUT else f"[{writer}](passes.md#{writer})"
        where = ", ".join(f"`{name}`" for name in attribute.on)
        form = f"```mlir\n{attribute.name} = {attribute.form}\n```"
        blocks += [
            f"### `{attribute.name}`",
            form,
            attribute.meaning,
            f"* On: {where}\n* First written by: {by}",
        ]
    blocks.append("## Forms")
    blocks.append(
        "Each phase leaves a form, which `shardopt-verify-<form>` checks before the next phase "
        "reads it. One form stands between the steps of a phase: decisions are attributes that "
        "later steps obey. Under each stand the errors that its verifier can report, with `…` for "
        "what is filled in: the list of what holds."
    )
    for phase in PHASES:
        for form in _forms_of(phase):
            blocks += _form_blocks(phase, form)
    blocks.append("### Checks that several forms share")
    for title, module in _SHARED:
        blocks += [title + ":", _message_list(module)]
    return _page(blocks)


def verifier_modules() -> tuple[str, ...]:
    """Where the errors of verifiers are written."""
    from shardopt.pipeline.phases import PHASES

    forms = dict.fromkeys(form for phase in PHASES for form in _forms_of(phase))
    own = [f"shardopt.forms.{_VERIFIERS.get(form, f'{form}_form')}" for form in forms]
    return (*own, *(module for _, module in _SHARED))


def _form_blocks(phase: Phase, form: str) -> list[str]:
    from scripts.doc_sources import docstring

    head, body = docstring(import_module(f"shardopt.forms.{form}_form"))
    verifier = f"shardopt.forms.{_VERIFIERS.get(form, f'{form}_form')}"
    where = "Left by" if form == _form_of(phase) else "Between the steps of"
    left = f"{where} phase [{phase.name}](passes.md#shardopt-{phase.name}); checked by "
    left += f"[shardopt-verify-{form}](passes.md#shardopt-verify-{form}):"
    return [f"### {form}", head, body, left, _message_list(verifier)]


def _message_list(module: str) -> str:
    from scripts.doc_sources import messages

    return "\n".join(f"* `{text}`" for text in messages(module))


# ---- options ----


def options_page() -> str:
    """`docs/reference/options.md`: the table of planning options."""
    blocks = [
        "# Options of planning",
        _generated(),
        "Each option is declared once, in `shardopt/options/plan_options.py`. It is a keyword "
        "argument of `shardopt.optimize` and the functions named below, a flag of `shardopt plan`, "
        "a field of `PlanOptions`, an option of the phases that it is handed to (`intra` is the "
        "[pipeline of one mesh](passes.md#shardopt-intra); a name behind a phase is what the "
        "option is called there), and a field under `options` of a [plan "
        "file](../guide/plan-file.md). Passes have further options, which "
        "[passes.md](passes.md) lists.",
        _table(HEADER, option_rows()),
    ]
    return _page(blocks)


# ---- schemas ----


def schemas() -> dict[Path, str]:
    """The files of `shardopt/schemas`: what the readers of each format expect."""
    from shardopt.hardware.cluster_file import DESCRIPTION
    from shardopt.planfile.fields import schema

    by_name = {"cluster": DESCRIPTION.schema(), "plan": schema()}
    folder = ROOT / "shardopt" / "schemas"
    return {
        folder / f"{name}.schema.json": json.dumps(values, indent=2) + "\n"
        for name, values in by_name.items()
    }


# ---- Markdown ----


def _generated() -> str:
    return (
        f"Made from the code by `{_COMMAND}`; a test checks that it is up to date. Edit the "
        "code, not this page."
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = tuple(header)
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def _page(blocks: Iterable[str]) -> str:
    return "\n\n".join(block for block in blocks if block) + "\n"


if __name__ == "__main__":
    sys.exit(main())
