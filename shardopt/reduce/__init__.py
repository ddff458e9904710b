"""Shrinking a module and a pipeline to a small pair that still fails: candidates, what makes them,
tests that say whether one still shows the fault, and the search."""
