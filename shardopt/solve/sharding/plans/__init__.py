"""Solutions to read and to keep: why, as texts of plan files, under other names."""
