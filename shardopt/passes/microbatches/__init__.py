"""How the microbatch loop is written."""
