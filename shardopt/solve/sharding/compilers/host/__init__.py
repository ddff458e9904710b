"""What XLA's backend for hosts makes of operations.

1. `instructions`: the operations as XLA has them when it begins to fuse.
2. `library_calls`: which of them one call of a library of kernels computes.
3. `loop_fusion`: what the others become: loops over the elements of what they write.
4. `breadth_first`: in which order all these run.
5. `execution`: the same, said about tensors and operations of the graph.

The rules are those of XLA's sources; `docs/evidence/memory.md` says how close the bytes that follow
are to those of programs that jaxlib 0.10.2 compiles."""
