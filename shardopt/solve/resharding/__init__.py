"""Who sends what between two meshes, and in which order."""
