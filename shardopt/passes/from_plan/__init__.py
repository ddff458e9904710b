"""How the deciding passes follow a plan file instead of searching."""
