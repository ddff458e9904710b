"""The import phase: any module becomes one straight-line function."""
