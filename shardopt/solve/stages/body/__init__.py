"""The body of a microbatch as arrays: what of it is forward, backward and recomputed."""
