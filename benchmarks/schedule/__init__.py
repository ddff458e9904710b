"""Schedules: how long they take to make, and what they hold in memory."""
