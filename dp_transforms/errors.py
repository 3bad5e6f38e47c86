"""Errors that several rooms raise and the command shows in one line."""

from __future__ import annotations


class UserError(Exception):
    """An expected failure: one line that says what is wrong, and the remedy. Never contains a cell of the data."""

    exit_code = 1


class MissingLibraryError(UserError, ImportError):
    """A library that only some uses need. The message says which extra of the package brings it."""


class StreamError(RuntimeError):
    """A source or sink cannot be used. The message is one line and contains no event."""
