"""Op graphs as plain values, and what their operations compute: FLOPs, bytes, windows."""
