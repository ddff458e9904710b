"""From modules to problems of sharding, and from their solutions to attributes."""
