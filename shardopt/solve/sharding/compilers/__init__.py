"""Which rules hold for what the compiler of a device makes of operations."""
