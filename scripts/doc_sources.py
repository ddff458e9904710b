"""What the generated pages take from source files: docstrings as Markdown, and strings that the
code says to users."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from inspect import getdoc, getsource
from types import ModuleType

# A message has a verb and an object; shorter strings are names, and parts that messages are made
# of.
_LEAST_WORDS = 5
_REPORTING = ("Violation", "ValueError", "report")
ELIDED = "…"


def docstring(module: ModuleType) -> tuple[str, str]:
    """The first line of a module's docstring, and the rest as Markdown."""
    head, _, body = (getdoc(module) or "").partition("\n")
    return head.strip(), markdown(body.strip("\n"))


def markdown(text: str) -> str:
    """Prose as it is; every sketch of IR, which is indented by four blanks or more, becomes a
    fenced block."""
    lines: list[str] = []
    sketch: list[str] = []
    for line in [*text.splitlines(), "."]:
        if _in_sketch(line, bool(sketch), lines):
            sketch.append(line)
            continue
        lines += _fenced(sketch)
        sketch = []
        lines.append(line)
    return "\n".join(lines[:-1]).strip("\n")


def _in_sketch(line: str, inside: bool, above: list[str]) -> bool:
    """A sketch starts behind a blank line, and may hold blank lines and the arrow between before
    and after."""
    if inside and (not line.strip() or line.strip() == "=>"):
        return True
    return line.startswith("    ") and (inside or not above or not above[-1].strip())


def _fenced(sketch: list[str]) -> list[str]:
    if not sketch:
        return []
    trailing = [""] if not sketch[-1].strip() else []
    while not sketch[-1].strip():
        sketch.pop()
    return ["```mlir", *(line.removeprefix("    ") for line in sketch), "```", *trailing]


@cache
def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(getsource(module))


def first_arguments(module: ModuleType, method: str) -> tuple[str, ...]:
    """The texts that a pass passes first to calls of `.method(…)`, in order: names of statistics,
    kinds of remarks.

    Its file is read, then the files of its folder whose functions it takes a `PassContext` to.
    """
    arguments = []
    for tree in map(_tree, (module, *_helpers(module))):
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
        texts = [
            (call.lineno, _text(call.args[0], "<{}>"))
            for call in calls
            if isinstance(call.func, ast.Attribute) and call.func.attr == method
        ]
        arguments += [text for _, text in sorted(texts) if text]
    return tuple(dict.fromkeys(arguments))


def _helpers(module: ModuleType) -> Iterator[ModuleType]:
    folder = module.__name__.rpartition(".")[0]
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{folder}."):
            helper = import_module(str(node.module))
            if helper.__name__ != f"{folder}.base" and hasattr(helper, "PassContext"):
                yield helper


def messages(module_name: str) -> tuple[str, ...]:
    """The errors a file can report, in order, with `…` for what is filled in; without those that
    only pass one on."""
    spoken = [
        text.removeprefix(f"{ELIDED}: ")
        for text in _spoken(_tree(import_module(module_name)), reported=False)
    ]
    whole = [
        text
        for text in spoken
        if len(text.split()) >= _LEAST_WORDS and not text.endswith(f": {ELIDED}")
    ]
    return tuple(dict.fromkeys(whole))


def _spoken(node: ast.AST, *, reported: bool) -> Iterator[str]:
    """Strings handed to a reporting call, returned or yielded, and all others that say what was
    expected."""
    text = _text(node, ELIDED)
    if text is not None:
        if reported or text.removeprefix(f"{ELIDED}: ").startswith("expected "):
            yield text
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
        return
    inside = isinstance(node, (ast.Return, ast.Yield)) or (
        isinstance(node, ast.Call) and _callee(node) in _REPORTING
    )
    for child in ast.iter_child_nodes(node):
        yield from _spoken(
            child, reported=inside or (reported and isinstance(node, (ast.IfExp, ast.Tuple)))
        )


def _callee(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _text(node: ast.AST, hole: str) -> str | None:
    """A string or f-string, with `hole` (which may show the expression) for each replaced part;
    None for the rest."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = (
        part.value if isinstance(part, ast.Constant) else hole.format(ast.unparse(part.value))  # type: ignore[attr-defined]
        for part in node.values
    )
    return "".join(map(str, parts))
