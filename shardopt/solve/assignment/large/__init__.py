"""Large problems: bounds by prices and messages, assignments by moves on forests."""
