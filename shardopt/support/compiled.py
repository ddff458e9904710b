"""Options of numba for compiled functions, with no more wrappers than are called: to compile these
takes longer than most functions do."""

from __future__ import annotations

from typing import Any

_ALL: dict[str, Any] = {"nogil": True, "no_cfunc_wrapper": True}

# Of functions that Python calls, which are kept on disk.
CALLED: dict[str, Any] = _ALL | {"cache": True}

# Of functions that only compiled ones call, which have their code.
INNER: dict[str, Any] = _ALL | {"no_cpython_wrapper": True}
