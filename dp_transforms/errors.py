"""Errors that several rooms raise and the command shows in one line."""

from __future__ import annotations

import re

# How errors of Python and of libraries begin where memory is short.
_NO_MEMORY = re.compile(
    r"^(?:\w+\.)*(?:(?:Arrow|_Array)?MemoryError\b|OSError: \[Errno 12\]|RuntimeError: can't start new thread)",
    re.MULTILINE,
)


class UserError(Exception):
    """An expected failure: one line that says what is wrong, and the remedy. Never contains a cell of the data."""

    exit_code = 1


class InputError(UserError, ValueError):
    """A value that cannot be used. In words of Python; the command has the flag in place of the parameter.

    parameter: its name, or that of several, or what else is meant. problem: what is wrong with it; may hold its value.
    remedy: what to do.
    """

    def __init__(self, parameter: str, problem: str, remedy: str = "") -> None:
        super().__init__(parameter, problem, remedy)
        self.parameter, self.problem, self.remedy = parameter, problem, remedy

    def __str__(self) -> str:
        return " ".join(filter(None, (self.parameter, self.problem, self.remedy)))


class LogError(UserError):
    """The log alone is why it failed, with any noise. Of a run on this machine nothing was published then, and nobody
    has seen what was drawn."""


class StreamError(UserError, RuntimeError):
    """A source or sink cannot be used. The message is one line and contains no event."""


class PoolError(UserError, RuntimeError):
    """A worker process died or could not be started, or what it makes could not be stored. One line, without a cell."""


class StepFaultError(RuntimeError):
    """An error of a library in a step of a replay here: its traceback, which may contain cells of the log."""


def reason_of_machine(traceback_text: str) -> str | None:
    """What the machine lacked, where that explains an error that nobody expected. Holds nothing of its message."""
    if _NO_MEMORY.search(traceback_text):
        return "there was not enough memory. Allow more, or give less to do at once"
    return None
