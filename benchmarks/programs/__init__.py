"""Small programs as people write them, library by feature, planned and run beside `jax.jit`."""
