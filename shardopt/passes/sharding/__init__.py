"""The shard phase: passes that decide about shardings, and passes that apply what was decided."""
