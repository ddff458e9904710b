"""Why a row of measurements cannot be predicted."""

from __future__ import annotations


class InexpressibleRow(Exception):
    """The text says what the row does not state, or what no plan can say."""
