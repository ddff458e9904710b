"""Who is stuck, and why."""
