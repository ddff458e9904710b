"""Measuring the devices at hand."""
