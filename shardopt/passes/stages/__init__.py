"""The stage phase: stages are read, placed, outlined and recomputed."""
