"""Passes and phases for `--help` and `--list-passes`, read from source text.

Importing the passes would load jaxlib and numpy, half a second for a page of help. Their names,
summaries and options are literals in a dataclass, or come from the table of planning, so the syntax
tree says the same; a class that is written otherwise is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import Field, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from shardopt.options import names
from shardopt.passes.options import OptionSpec, option, option_specs, plan_option
from shardopt.passes.registry import PASSES, PREFIX, pass_class
from shardopt.pipeline.phases import PHASES, PIPELINES, Phase

_DEFAULT_ANCHOR = "builtin.module"


@dataclass(frozen=True)
class PassInfo:
    """What a user wants to know of a pass."""

    name: str
    summary: str
    anchor: str
    options: tuple[OptionSpec, ...]


def pass_info(name: str) -> PassInfo:
    """The description of a registered pass, without importing it where that is possible."""
    try:
        return _from_source(name)
    except (ValueError, NameError, LookupError, OSError):
        cls = pass_class(name)
        return PassInfo(name, cls.summary, cls.anchor, option_specs(cls))


def describe() -> Iterator[str]:
    """Lines about the phases with their steps, the pipelines beside them, and the passes with their
    options."""
    yield "Phases, in order:"
    for phase in PHASES:
        yield from _phase_lines(phase)
    yield ""
    yield "Other pipelines:"
    for phase in PIPELINES:
        yield from _phase_lines(phase)
    yield ""
    yield "Passes:"
    for name in PASSES:
        info = pass_info(name)
        yield f"  {name}: {info.summary} (on {info.anchor})"
        for spec in info.options:
            yield f"      {spec.name} ({spec.type_text}, default {spec.default_text}): {spec.help}"


def _phase_lines(phase: Phase) -> Iterator[str]:
    yield f"  {PREFIX}{phase.name}: {phase.summary}"
    for step in phase.steps:
        yield (
            f"      {step}"
            if isinstance(step, str)
            else f"      {','.join(step.steps)}  (with {step.switch}=true)"
        )


def _from_source(name: str) -> PassInfo:
    """Raises ValueError, NameError or LookupError for a class whose description is not literal."""
    module, _, cls = PASSES[name].partition(":")
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"no source of {module}")
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    constants = _constants(tree.body)
    node = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls)
    about = _constants(node.body)
    options = tuple(
        _option(field, constants)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.value, ast.Call)
    )
    return PassInfo(name, about["summary"], about.get("anchor", _DEFAULT_ANCHOR), options)


def _constants(body: list[ast.stmt]) -> dict[str, Any]:
    """Names that are assigned literals."""
    values: dict[str, Any] = {}
    for node in body:
        if (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
        ):
            try:
                values[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return values


def _option(field: ast.AnnAssign, constants: dict[str, Any]) -> OptionSpec:
    """`num_stages: int = option(0, help="…")`, or `plan_option("stages")`."""
    call = field.value
    if not isinstance(call, ast.Call) or not isinstance(field.target, ast.Name):
        raise ValueError("expected a field with option(…)")
    argument = call.args[0]
    first = constants[argument.id] if isinstance(argument, ast.Name) else ast.literal_eval(argument)
    keywords = {
        keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg
    }
    made = plan_option if ast.unparse(call.func) == "plan_option" else option
    row: Field[Any] = made(first, **keywords)
    # The annotation is an expression of builtin types, Literal, and names of the table; others
    # raise NameError.
    expression = compile(ast.Expression(field.annotation), "<annotation>", "eval")
    type_ = eval(expression, {**vars(names), "Literal": Literal})
    name = field.target.id
    return OptionSpec(name.replace("_", "-"), name, type_, row.default, row.metadata["help"])
