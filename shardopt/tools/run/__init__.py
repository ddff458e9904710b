"""`shardopt run`: a plan on workers, with checks, checkpoints and views of what happened."""
