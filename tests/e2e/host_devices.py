"""Programs that need several host devices, in processes of their own: JAX counts its devices once
in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_on_host_devices(program: str, devices: int) -> subprocess.CompletedProcess[str]:
    """The Python program's run. Raises AssertionError with the end of its errors if it fails."""
    flags = (os.environ.get("XLA_FLAGS", ""), f"--xla_force_host_platform_device_count={devices}")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": " ".join(flags).strip(), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done
