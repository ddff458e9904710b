"""The Python API: models in, plans out."""
