"""What results depend on beside their inputs: the source of this package and the libraries that
decide with it."""

from __future__ import annotations

import platform
import sys
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# Whoever changes what is read, derived or solved; the source of this package stands for itself.
_LIBRARIES = ("jaxlib", "numpy", "numba", "ortools", "PyYAML")


@cache
def fingerprint() -> bytes:
    """A hash of the source files and presets of this package and of the versions of the libraries
    under it.

    The source itself is read, not only its version: a checkout changes more often than that. 10 ms.
    """
    digest = sha256(f"{sys.version_info[:2]} {platform.machine()}".encode())
    root = Path(__file__).parents[1]
    for path in sorted(path for pattern in ("*.py", "*.yaml") for path in root.rglob(pattern)):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    for library in _LIBRARIES:
        digest.update(f"{library} {_version(library)}\0".encode())
    return digest.digest()


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "absent"
