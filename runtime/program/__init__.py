"""From an exported module to lists of instructions, and the checks of these."""
