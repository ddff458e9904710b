"""The solvers: time, optimality, baselines."""
