"""The order of tasks on every mesh, and the simulator that runs it."""
