"""Whole plans: of many models, how good and how soon."""
