"""Files that say what is decided already: plan files and constraints."""
