"""The one exception for errors of the user: the tools print it as a single line and exit with
code 1."""

from __future__ import annotations


class UserError(Exception):
    """Bad input, with a message that names the place (file, field, option or operation) and what
    was expected."""
