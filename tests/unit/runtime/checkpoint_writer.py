"""A process that writes checkpoints until it is killed: `python checkpoint_writer.py FOLDER`.

Each has two files of 1 MiB with the step in every element. A line with the step follows when it
stands."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from shardopt.runtime.state.checkpoint_folder import CheckpointFolder, checkpoints
from shardopt.runtime.state.manifest import Manifest, StoredArray
from shardopt.runtime.state.shard_files import ShardWriter

SHAPE = (4, 1 << 16)


def main(path: Path) -> None:
    folder = CheckpointFolder(path, keep=2)
    done = [step for step, _ in checkpoints(path)]
    step = done[-1] if done else 0
    while True:
        step += 1
        writing, shards = folder.begin(step), []
        for half in range(2):
            with ShardWriter(writing, f"m{half}.bin") as writer:
                slice_ = ((2 * half, 2 * half + 2), (0, SHAPE[1]))
                shards.append(writer.add(slice_, np.full((2, SHAPE[1]), step, np.int64)))
        folder.commit(writing, Manifest(step, (StoredArray("w", SHAPE, "int64", tuple(shards)),)))
        print(step, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
