"""What `shardopt run` and `shardopt program` read: the program of a plan or of an exported module,
and arrays."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardopt.support.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from shardopt.frontend.plans.plan import Plan
    from shardopt.runtime.program.instructions import Program


def read_program(path: Path) -> tuple[Program, Plan | None]:
    """Of a plan directory, with the plan; or of a file with an exported module. Raises
    UserError."""
    from shardopt.frontend.plans.plan import Plan
    from shardopt.ir.context import make_context
    from shardopt.ir.io import load_module
    from shardopt.runtime.driver import prepare

    if not path.is_file():
        plan = Plan.load(path)
        return plan.program(), plan
    with make_context() as context:
        return prepare(load_module(path.read_bytes(), context, name=str(path))), None


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


def as_dtype(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    import numpy as np

    if array.dtype.kind == "V" and array.itemsize == dtype.itemsize:
        return array.view(dtype)
    return (
        array.astype(dtype)
        if array.dtype != dtype and np.can_cast(array.dtype, dtype, "safe")
        else array
    )
