"""The stage DP: from prices of candidate stages to the shortest plans."""
