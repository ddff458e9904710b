"""How workers are started, and how commands reach them."""
