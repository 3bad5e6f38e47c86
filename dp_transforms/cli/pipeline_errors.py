"""The errors of a pipeline, each in one line. Messages of other code may contain a cell, so they are not shown; and
what Beam prints without using a log is kept from the terminal, unless --verbose is given."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import threading
import traceback
from collections.abc import Iterator

from dp_transforms.errors import InputError, LogError, UserError, reason_of_machine
from dp_transforms.logs import EventFileError

# Their messages contain no cell.
_OURS = re.compile(r"dp_transforms\.(?:\w+\.)*(EventFileError|ReportFileError|StreamError|StateError|UserError): (.*)")
_TRACEBACK = "Traceback (most recent call last):\n"
_OF_A_WORKER = "[while running"  # which Beam puts into the message, or into the first of its parts
_WHILE_RUNNING = re.compile(r" \[while running .*\]$")


@contextlib.contextmanager
def errors_in_one_line(outcome: str) -> Iterator[None]:
    """Turns an error of a pipeline into a UserError. outcome: what became of the run, for the end of the line."""
    try:
        yield
    except Exception as error:
        raise _in_one_line(error, outcome) from None


def _in_one_line(error: Exception, outcome: str) -> BaseException:
    text = str(error)
    message, is_of_worker = _WHILE_RUNNING.sub("", text), _OF_A_WORKER in text
    if isinstance(error, LogError):
        return LogError(message)
    if isinstance(error, UserError) and not is_of_worker:
        return error
    if isinstance(error, UserError) and not isinstance(error, InputError):  # which, of a worker, may hold a cell
        return UserError(message)
    # Errors about options. The message of a worker was not written to be shown.
    if type(error) is ValueError and not is_of_worker and "\n" not in text:
        return UserError(text)
    frames, last = "", f"{type(error).__name__}:"
    if isinstance(error, RuntimeError) and _TRACEBACK in text:  # of a worker, whose errors arrive so
        # A signal that comes while a worker runs in this process is wrapped as well.
        if re.search(r"^KeyboardInterrupt\b", text, re.MULTILINE):
            return KeyboardInterrupt()
        frames, last = _innermost(text)
        if ours := _OURS.fullmatch(last):
            kind = LogError if ours[1] == EventFileError.__name__ else UserError
            return kind(_WHILE_RUNNING.sub("", ours[2]))
    whole = "".join(traceback.format_exception(error))
    logging.getLogger(__name__).info("%s", whole)  # shown with --verbose alone: a cell may be in it
    if reason := reason_of_machine(whole):
        return UserError(f"{reason}; {outcome}.")
    name = re.match(r"(?:\w+\.)*(\w+(?:Error|Exception|Interrupt))(?::|$)", last)
    places = re.findall(r'^  File "[^"]*/(dp_transforms/[^"]*)", line (\d+)', frames, re.MULTILINE)
    place = f" at {places[-1][0]}:{places[-1][1]}" if places else ""
    return UserError(
        f"the pipeline failed with {name[1] if name else 'an error'}{place}; {outcome}."
        " --verbose shows the whole traceback, which may contain cells of the log."
    )


def _innermost(text: str) -> tuple[str, str]:
    """The frames of the first traceback in a text, and the line after them: kind and message of the error that was
    raised first. What follows may be more lines of its message, with cells, whatever they look like."""
    lines = text.partition(_TRACEBACK)[2].splitlines()
    frames = list(itertools.takewhile(lambda line: line.startswith(" "), lines))
    return "\n".join(frames), "".join(lines[len(frames) : len(frames) + 1])


def quiet_workers() -> None:
    """From now on workers in this process print nothing, at default verbosity.

    A worker that fails prints its whole traceback, and a message of other code in it may contain a cell of the data.
    Threads of Beam end with a traceback when a job is cancelled or its engine stops.
    """
    if logging.getLogger().level < logging.CRITICAL:
        return
    from apache_beam.runners.worker import log_handler, sdk_worker

    threading.excepthook = lambda failed: None
    for module in (sdk_worker, log_handler):
        vars(module)["print"] = lambda *words, **options: None  # a global of the module hides the builtin
