"""What carries messages between meshes."""
