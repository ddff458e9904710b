"""Training steps of known model families as StableHLO, traced from shapes: no weight is in
memory."""
