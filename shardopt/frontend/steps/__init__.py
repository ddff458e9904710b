"""Steps called with arrays of JAX: planned on the first call, with state on the workers."""
