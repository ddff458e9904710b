"""Phases and pipelines of passes, and what watches them run."""
