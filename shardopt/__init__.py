"""shardopt: automatic model parallelism for JAX."""
