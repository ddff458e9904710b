"""The cluster phase: which layer every operation belongs to."""
