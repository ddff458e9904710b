"""The sharding problem of one mesh: strategies, costs, memory."""
