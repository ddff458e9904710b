"""What a candidate stage costs on a submesh."""
