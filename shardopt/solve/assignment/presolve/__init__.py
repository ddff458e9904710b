"""Exact simplifications of a problem before the search."""
