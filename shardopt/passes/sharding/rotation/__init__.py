"""Attention as a ring: turns of keys past the queries of every device, as manual regions."""
