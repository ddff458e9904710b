"""Known planners of stages, to compare with the stage DP."""
