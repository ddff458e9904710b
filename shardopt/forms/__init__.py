"""The forms between phases: what a module of each looks like, and its verifier."""
