"""Predicted costs, against XLA and against the clock."""
