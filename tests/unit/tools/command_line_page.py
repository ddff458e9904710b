"""docs/reference/command-line.md, made from the parser of `shardopt`.

Run by `python -m tests.unit.tools.command_line_page`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from shardopt.tools.shardopt import _parser

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "command-line.md"
# A `|` within a cell of a table; GitHub and mkdocs read `\\|` within code in two ways.
BAR = "&#124;"
_HEAD = """# Command line

Every command of `shardopt`, with its options. Made from the parsers by
`python -m tests.unit.tools.command_line_page`; a test checks that it is up to date. `COMMAND --help` prints
the same.

The other tool, `shardopt-opt`, runs single phases and passes on text: [its flags beside those of
mlir-opt](mlir-opt.md), [phases and passes](passes.md).

Exit codes: 0 for success; 1 for an error in the input or a check that failed; 2 for a bug of ours; 3 for a
run that failed; 4 for a run that a limit of time ended.
"""


def page() -> str:
    return "\n".join([_HEAD, *_commands()])


def _commands() -> Iterator[str]:
    (commands,) = (
        action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    for name, parser in commands.choices.items():
        yield f"## shardopt {name}\n\n{parser.description or _help_of(commands, name)}\n"
        yield "| argument | default | meaning |\n|---|---|---|"
        yield from (_row(action) for action in parser._actions if action.dest != "help")
        yield ""


def _help_of(commands: argparse._SubParsersAction, name: str) -> str:
    text = next(str(action.help) for action in commands._choices_actions if action.dest == name)
    return text[:1].upper() + text[1:] + "."


def _row(action: argparse.Action) -> str:
    values = [str(choice) for choice in action.choices or ()]
    metavar = (
        action.metavar
        if isinstance(action.metavar, str)
        else "|".join(values) or action.dest.upper()
    )
    if not action.option_strings:
        shown = metavar
    else:
        shown = ", ".join(action.option_strings) + ("" if action.nargs == 0 else f" {metavar}")
    none = action.nargs == 0 or action.default is None or action.default == ""
    default = "" if none else f"`{action.default}`"
    text = (action.help or "") % {"default": action.default, "prog": ""}
    return f"| {_code(shown)} | {default} | {text.replace('|', BAR)} |"


def _code(text: str) -> str:
    return f"<code>{text.replace('|', BAR)}</code>" if "|" in text else f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
