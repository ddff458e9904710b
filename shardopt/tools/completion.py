"""Completion of commands, options and their values in bash, zsh and fish, by argcomplete.

The shell runs the tool itself, with a variable set, at every press of the key: parsers load nothing
heavy, so that takes as long as `--help`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable

from shardopt.support.errors import UserError

SHELLS = ("bash", "zsh", "fish")
TOOLS = ("shardopt", "shardopt-opt")
# Set by the shell function that argcomplete gives.
_VARIABLE = "_ARGCOMPLETE"


def is_completing() -> bool:
    return _VARIABLE in os.environ


def complete(parser: argparse.ArgumentParser) -> None:
    """Where the shell asks what may follow: answer, and leave. Otherwise do nothing."""
    if not is_completing():
        return
    try:
        import argcomplete
    except ModuleNotFoundError:  # the shell then completes nothing
        return
    argcomplete.autocomplete(parser)


def suggest(action: argparse.Action, words: Iterable[str]) -> None:
    """Words that may stand as the value of an option, beside others."""
    action.completer = lambda **_: tuple(words)  # type: ignore[attr-defined]


def add_completion(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print what makes a shell complete the commands and options of both tools: "
        'eval "$(shardopt completion bash)" in ~/.bashrc (zsh: ~/.zshrc), or '
        "shardopt completion fish > ~/.config/fish/completions/shardopt.fish."
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=_print)


def _print(args: argparse.Namespace) -> None:
    try:
        from argcomplete import shellcode
    except ModuleNotFoundError:
        raise UserError(
            "completion needs the package argcomplete: pip install 'shardopt[completion]'"
        ) from None
    print(shellcode(list(TOOLS), shell=args.shell))
