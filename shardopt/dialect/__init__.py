"""What our IR says beside its operations: attributes and types, read and written."""
