"""Meshes of real devices, as XLA, CUDA and numpy see them."""
