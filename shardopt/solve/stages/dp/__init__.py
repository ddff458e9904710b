"""The stage DP: from costs of candidate stages to the shortest plans."""
