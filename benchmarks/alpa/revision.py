"""The commit of this checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path


def revision() -> str:
    """Short, with `-dirty` behind it where files were changed; "" outside of a repository."""
    folder = Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout.strip()
