"""Running `benchmarks.frontend.plan_case` in fresh processes, each with a time limit and a cache
folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardopt.caching.store import CACHE_VARIABLE


def run_case(
    model: Path, options: Mapping[str, Any], cache: Path | str, limit_seconds: float
) -> dict[str, Any]:
    """What the case says; a process that dies or takes too long gives a `crash`."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.frontend.plan_case",
        str(model),
        json.dumps(dict(options)),
    ]
    environment = {**os.environ, CACHE_VARIABLE: str(cache)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        printed, errors = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"crash": f"not finished after {limit_seconds:.0f} s"}
    if process.returncode < 0:
        return {"crash": f"ended by {signal.Signals(-process.returncode).name}"}
    if process.returncode or not printed:
        return {
            "crash": errors.strip().splitlines()[-1]
            if errors.strip()
            else f"exit code {process.returncode}"
        }
    row: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return row
