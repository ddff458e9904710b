"""Known methods of sharding, as restrictions of the sharding problem."""
