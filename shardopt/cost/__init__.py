"""Seconds and bytes: of computing, of collectives, of messages."""
