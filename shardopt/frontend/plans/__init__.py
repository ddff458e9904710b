"""Finished plans: the value, its files, the cache, and plan files as a beginning."""
