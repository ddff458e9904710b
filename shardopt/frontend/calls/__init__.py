"""What callers hand over and what they read: options, models, functions and their arguments."""
