"""What the user demands of shardings, by annotations and by a constraint file."""
