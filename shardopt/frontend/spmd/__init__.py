"""One mesh without stages: shardings for a function or a module, under plain JAX."""
