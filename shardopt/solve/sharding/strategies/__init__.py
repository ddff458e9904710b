"""Strategies of one operation: how it may be split, and what that costs."""
