"""Where the batch ends: what runs once a step, and what once a microbatch."""
