"""Plans as tables and pictures."""
