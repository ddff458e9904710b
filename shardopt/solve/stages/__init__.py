"""From a step to pipeline stages on submeshes."""
