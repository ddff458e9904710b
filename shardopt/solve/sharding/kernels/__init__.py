"""What a compiler makes of operations: kernels, what they read and write, and their order."""
