"""The commands of `shardopt` that are one file each."""
