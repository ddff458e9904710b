"""From IR to plain values: the op graphs and task graphs that solvers see."""
