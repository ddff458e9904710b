"""How stages are read, placed, outlined and recomputed."""
