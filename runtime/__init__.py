"""The runtime, imported as `shardopt.runtime`: it executes any module of the exported form."""
