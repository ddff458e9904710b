"""What XLA made of a module, read from its HLO text."""
