"""Results on disk, found again by all that they depend on."""
