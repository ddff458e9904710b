"""The searches around the stage DP: schedules, shared meshes, places, given stages."""
