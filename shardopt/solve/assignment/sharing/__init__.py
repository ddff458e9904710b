"""Costs that several edges of a node have in common and pay together once."""
