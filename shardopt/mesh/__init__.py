"""Meshes and shardings as plain values, and how people write them."""
