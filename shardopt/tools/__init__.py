"""The commands `shardopt` and `shardopt-opt`."""
