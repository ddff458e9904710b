"""How shardings are asked for, demanded, explained and written."""
