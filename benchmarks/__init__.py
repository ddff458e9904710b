"""Programs that measure; each folder measures the package of the same name."""
