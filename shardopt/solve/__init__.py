"""Every decision as a function of integers and arrays, without MLIR."""
