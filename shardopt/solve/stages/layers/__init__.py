"""Which layer every operation belongs to."""
