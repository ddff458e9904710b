"""From a model to a plan: all phases, and the searches around them."""
