"""What all command-line tools share: exit codes, and how errors reach the user."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from shardopt import __version__
from shardopt.support.errors import UserError
from shardopt.support.suggestions import suggestion

if TYPE_CHECKING:
    from rich.console import Console

    from shardopt.ir.diagnostics import Diagnostic

# XLA warns about every compilation with GSPMD; must be set before the first import of jaxlib.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

EXIT_OK = 0
EXIT_USER_ERROR = 1
EXIT_BUG = 2
EXIT_RUN_FAILED = 3  # a worker was lost, or failed: nobody's fault, and worth another try
EXIT_STOPPED = 4  # a limit of time ended a run before its last step


# A file or a pipe has no width, and a table cut at 80 columns would lose figures.
_PIPE_COLUMNS = 180
# Remarks that answer a question of the command line: printed whether or not remarks are wanted.
ANSWERS = frozenset({"explain"})


def module_bytes(path: Path) -> int:
    """Of the modules that are read of a plan directory, or of a file; 0 for what is neither."""
    files = [path / "module.mlirbc", path / "original.mlirbc"] if path.is_dir() else [path]
    return sum(each.stat().st_size for each in files if each.is_file())


def console() -> Console:
    """Standard output for tables."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=_PIPE_COLUMNS)


def report(diagnostic: Diagnostic, *, remarks: bool) -> None:
    """Print a message of a pass: answers to the user's question to stdout, the rest to stderr."""
    from shardopt.ir.diagnostics import render

    if diagnostic.kind in ANSWERS:
        print(diagnostic.message)
    elif remarks or diagnostic.severity != "remark":
        print(render(diagnostic), file=sys.stderr)


class ToolParser(argparse.ArgumentParser):
    """An argument parser whose errors are a user's errors: exit code 1, where argparse would say
    2."""

    @property
    def option_strings(self) -> tuple[str, ...]:
        """Every option as written, such as `-o` and `--emit-bytecode`."""
        return tuple(self._option_string_actions)

    def option(self, name: str) -> argparse.Action | None:
        """What stands behind `--name`, or behind `-n`."""
        return self._option_string_actions.get(name)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """An unknown option is refused by the command that it was given to, which knows what it
        could have been."""
        parsed, left = super().parse_known_args(args, namespace)
        for word in left:
            if word.startswith("-") and len(word) > 1:
                name, known = word.partition("=")[0], [*self._option_string_actions]
                self.error(f"unknown option: '{name}'{suggestion(name, known)}")
        return parsed, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            name = str(value)
            meant = suggestion(name, known)
            raise argparse.ArgumentError(action, f"invalid choice: '{name}'{meant}")

    def print_help(self, file: Any = None) -> None:
        """To standard output, by default, whose reader may leave."""
        if file is None:
            _show(self.format_help().removesuffix("\n"))
        else:
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USER_ERROR, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


class ShowVersion(argparse.Action):
    """`--version`: what a report of a bug should name."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        show_and_exit(parser, version_line(parser.prog))


def show_and_exit(parser: argparse.ArgumentParser, text: str) -> NoReturn:
    """Print an answer of the parser itself to standard output."""
    _show(text)
    parser.exit()


def _show(text: str) -> None:
    # Where that waits for the end of Python, it is told of a reader that left, and says so.
    try:
        print(text, flush=True)
    except BrokenPipeError:
        forget_output()


def version_line(tool: str) -> str:
    """`shardopt 0.1.0 (jax 0.10.2, jaxlib 0.10.2, Python 3.11.7)`.

    Our own version is that of the code which runs; the libraries are asked without loading them.
    """
    import platform
    from importlib.metadata import PackageNotFoundError, version

    parts = []
    for library in ("jax", "jaxlib"):
        try:
            parts.append(f"{library} {version(library)}")
        except PackageNotFoundError:
            parts.append(f"no {library}")
    parts.append(f"Python {platform.python_version()}")
    return f"{tool} {__version__} ({', '.join(parts)})"


def run_tool(
    name: str,
    body: Callable[[], int | None],
    on_error: Callable[[UserError], None] | None = None,
) -> int:
    """Run `body` and return the exit code: its own, 1 after a user's error (diagnosed, unless
    `on_error` says it otherwise), 2 after a bug (traceback)."""
    try:
        code = body()
        sys.stdout.flush()
        return code or EXIT_OK
    except BrokenPipeError:
        forget_output()
        return EXIT_USER_ERROR
    except Exception as error:
        try:
            return _told(name, error, on_error)
        except BrokenPipeError:  # nobody wants to know, but the code is what it is
            forget_output()
            return EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_BUG


def _told(name: str, error: Exception, on_error: Callable[[UserError], None] | None) -> int:
    """The exit code for an error that is being handled, once it has been reported."""
    if not isinstance(error, UserError):
        report_bug(name)
        return EXIT_BUG
    if on_error is None:
        report_user_error(name, error)
    else:
        on_error(error)
    return EXIT_USER_ERROR


def forget_output() -> None:
    """The reader of our output left, as `head` does: what is still to be flushed goes nowhere."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def report_bug(name: str) -> None:
    """Print the exception being handled, which is no user's error."""
    traceback.print_exc()
    print(
        f"{name}: internal error: the traceback above is a bug in shardopt, not in the input",
        file=sys.stderr,
    )


def report_user_error(name: str, error: UserError) -> None:
    """Print a user's error: diagnostics with their source lines, other messages after the name of
    the tool."""
    diagnostics = getattr(error, "diagnostics", ())
    if not diagnostics:
        print(f"{name}: error: {error}", file=sys.stderr)
        return
    from shardopt.ir.diagnostics import render

    for diagnostic in diagnostics:
        print(render(diagnostic), file=sys.stderr)


def count(text: str) -> int:
    """A positive integer on the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, found '{text}'")
    return int(text)
