"""A process that writes checkpoints is killed again and again: what it said stands, stands, and is
whole."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardopt.runtime.state.checkpoint_folder import checkpoints
from shardopt.runtime.state.manifest import read_manifest
from shardopt.runtime.state.shard_files import read_slice
from tests.unit.runtime.checkpoint_writer import SHAPE

KILLS = 8


@pytest.mark.slow
def test_nothing_that_was_checkpointed_is_lost(tmp_path: Path) -> None:
    generator, reached, half_written = random.Random(0), 0, 0
    for _ in range(KILLS):
        command = [
            sys.executable,
            str(Path(__file__).with_name("checkpoint_writer.py")),
            str(tmp_path),
        ]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
        ) as writer:
            assert writer.stdout is not None
            steps = [int(writer.stdout.readline())]
            time.sleep(generator.uniform(0, 0.1))
            writer.kill()
            steps += [int(line) for line in writer.stdout if line.endswith("\n")]
        half_written += len(list(tmp_path.glob(".writing-*")))
        saved = checkpoints(tmp_path)
        assert steps[0] == reached + 1, "it went on where the one before had come to"
        assert saved[-1][0] in (steps[-1], steps[-1] + 1) and len(saved) <= 3
        for step, folder in saved:
            manifest = read_manifest(folder)
            assert manifest.step == step
            assert (
                read_slice(folder, manifest.arrays[0], ((0, SHAPE[0]), (0, SHAPE[1]))) == step
            ).all()
        reached = saved[-1][0]
    assert half_written, "some were killed in the middle of it, or this shows nothing"
