"""What the passes of the import phase rewrite with."""
