"""The command line tools: speed, and inputs that should not break them."""
