"""The passes by phase, one file each, beside what they rewrite with."""
