"""The intra-operator problem, when its tensors are in memory, and what a solution says."""
