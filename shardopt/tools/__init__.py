"""The commands `shardopt` and `shardopt-opt`: a room for each that has several files."""
