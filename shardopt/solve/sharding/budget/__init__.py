"""Plans within a memory budget: copies, recomputed values, the smallest peak."""
