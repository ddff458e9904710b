"""Causal models, cut along their tokens."""
