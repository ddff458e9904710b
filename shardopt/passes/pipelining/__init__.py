"""The phases behind sharding: transfers between meshes, the order of tasks, exported functions."""
