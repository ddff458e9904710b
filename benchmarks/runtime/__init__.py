"""What the runtime itself costs; see `python -m benchmarks.runtime --help`."""
