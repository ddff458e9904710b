"""How passes write what was decided about shardings: copies, stops, sums, types."""
