"""What `shardopt run` and `shardopt program` read: the program of a plan or of an exported module,
and arrays."""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardopt.support.errors import UserError
from shardopt.tools.common import module_bytes

if TYPE_CHECKING:
    import numpy as np
    from jaxlib.mlir import ir

    from shardopt.frontend.plans.plan import Plan
    from shardopt.runtime.program.instructions import Program


def add_program_flags(parser: argparse.ArgumentParser) -> None:
    """How a plan or module is read."""
    parser.add_argument(
        "--entry", metavar="NAME", help="function of the module that is taken (default: main)"
    )
    parser.add_argument(
        "--name-to-mesh",
        default=(),
        type=lambda text: tuple(text.split(",")),
        metavar="NAME@MESH,…",
        help="meshes of the named computations of a module that says none",
    )
    parser.add_argument(
        "--custom-calls",
        default="",
        metavar="NAME,…",
        help="custom calls to allow, beside those that XLA and JAX register",
    )


def read_program(args: argparse.Namespace, path: Path) -> tuple[Program, Plan | None]:
    """Of a plan directory, with the plan; or of a file with a module, which the flags of
    `add_program_flags` are about. Raises UserError."""
    from shardopt.ir.trial import in_child

    for flag, value in (("--entry", args.entry), ("--name-to-mesh", args.name_to_mesh)):
        if value and not path.is_file():
            raise UserError(f"{flag} names parts of a module; '{path}' is a plan")
    work = partial(_read_program, path, args.entry, args.name_to_mesh, args.custom_calls)
    return in_child(work, str(path), module_bytes(path))


def _read_program(
    path: Path, entry: str | None, name_to_mesh: tuple[str, ...], custom_calls: str
) -> tuple[Program, Plan | None]:
    from shardopt.frontend.plans.plan import Plan
    from shardopt.ir.context import make_context
    from shardopt.ir.io import text_expected
    from shardopt.runtime.driver import prepare

    if not path.is_file():
        plan = Plan.load(path, custom_calls)
        with plan.loaded as modules, text_expected(str(path)):
            modules.read(plan.original, name="original.mlirbc")  # `--check` runs it
            return plan.program(), plan
    with make_context() as context, text_expected(str(path)):
        return prepare(_runnable(path, entry, name_to_mesh, context), custom_calls), None


def module_reference(args: argparse.Namespace, path: Path) -> Callable[..., list[np.ndarray]]:
    """What the module computes on one device, from inputs to outputs. Raises UserError."""
    from shardopt.forms.exported_form import read_exported
    from shardopt.ir.context import make_context
    from shardopt.runtime.interpretation import Interpretation

    with make_context() as context:
        return Interpretation(
            read_exported(_runnable(path, args.entry, args.name_to_mesh, context))
        )


def _runnable(
    path: Path, entry: str | None, name_to_mesh: tuple[str, ...], context: ir.Context
) -> ir.Module:
    from shardopt.ir.io import load_module
    from shardopt.tools.run.entry import make_runnable

    module = load_module(path, context)
    make_runnable(module, entry, name_to_mesh)
    return module


def write_outputs(path: Path, outputs: Sequence[np.ndarray]) -> None:
    """The arrays `out<k>` as an .npz. Raises UserError."""
    import numpy as np

    arrays: dict[str, Any] = {f"out{k}": value for k, value in enumerate(outputs)}
    try:
        with path.open("wb") as file:  # numpy would add its ending to another name
            np.savez(file, **arrays)
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror or error}") from error


def read_inputs(path: Path, inputs: list[np.ndarray]) -> None:
    """Replace inputs by the arrays `in<k>` of an .npz. Floats are widened, raw bytes reinterpreted
    (bfloat16)."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as stored:
            by_name = {name: stored[name] for name in stored.files}
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror or error}") from error
    except (ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"'{path}' is not an .npz file of plain arrays: {error}") from error
    known = {f"in{k}": k for k in range(len(inputs))}
    for name in sorted(by_name.keys() & known.keys()):
        inputs[known[name]] = as_dtype(by_name[name], inputs[known[name]].dtype)
    missing = len(known) - len(by_name.keys() & known.keys())
    if missing:
        print(
            f"note: {missing} of {len(known)} inputs are not in '{path}' and are random",
            file=sys.stderr,
        )


def numbers_by_name(program: Program) -> dict[str, int]:
    """The arguments, by name where no other has it, and as `in<k>`."""
    arguments = program.signature.arguments
    uses = Counter(argument.name for argument in arguments)
    by_name = {f"in{number}": number for number in range(len(arguments))}
    for number, argument in enumerate(arguments):
        if uses[argument.name] == 1:
            by_name[argument.name] = number
    return by_name


def as_dtype(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    import numpy as np

    if array.dtype.kind == "V" and array.itemsize == dtype.itemsize:
        return array.view(dtype)
    return (
        array.astype(dtype)
        if array.dtype != dtype and np.can_cast(array.dtype, dtype, "safe")
        else array
    )
