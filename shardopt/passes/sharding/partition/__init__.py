"""A planned module as the program of one device, with collectives: our own partitioner."""
