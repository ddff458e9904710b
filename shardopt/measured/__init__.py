"""Predictions held against published measurements: rows of a table, the plan that each states, and
the distance."""
