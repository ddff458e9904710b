"""State on the workers: made, kept, written to checkpoints, read back."""
