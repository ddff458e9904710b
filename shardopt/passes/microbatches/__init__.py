"""The microbatch phase: the step becomes prologue, loop and epilogue."""
