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
from typing import Any

from dp_transforms.cli.options import LogError
from dp_transforms.errors import InputError, PoolError, StepFaultError, StreamError, UserError, reason_of_machine
from dp_transforms.logs import EventFileError
from dp_transforms.reports import ReportFileError
from dp_transforms.runs.records import StateError

# Their messages contain no cell.
_OURS = re.compile(r"dp_transforms\.(?:\w+\.)*(EventFileError|ReportFileError|StreamError|StateError): (.*)")
_TRACEBACK = "Traceback (most recent call last):\n"
_WHILE_RUNNING = re.compile(r" \[while running .*\]$")  # which Beam adds
_BAD_OPTIONS = "Pipeline has validations errors:"  # Beam's own check of its options, one per line


@contextlib.contextmanager
def errors_in_one_line(outcome: str) -> Iterator[None]:
    """Turns an error of a pipeline into a UserError. outcome: what became of the run, for the end of the line."""
    try:
        yield
    except EventFileError as error:  # of this process
        raise LogError(_WHILE_RUNNING.sub("", str(error))) from None
    except (ReportFileError, StreamError, StateError, PoolError) as error:
        raise UserError(_WHILE_RUNNING.sub("", str(error))) from None
    except UserError as error:
        if isinstance(error, InputError) and "[while running" in str(error):  # of a worker: it may hold a cell
            raise _unexpected(error, str(error), outcome) from None
        raise
    except StepFaultError as error:
        raise _unexpected(error, str(error), outcome) from None
    except (ValueError, RuntimeError) as error:
        text = str(error)
        # A signal that comes while a worker runs in this process is wrapped as well.
        if re.search(r"^KeyboardInterrupt\b", text, re.MULTILINE):
            raise KeyboardInterrupt from None
        # Errors of workers of Beam arrive as the text of a traceback.
        if ours := _OURS.fullmatch(_innermost(text)[1]):
            message = _WHILE_RUNNING.sub("", ours[2])
            raise (LogError if ours[1] == EventFileError.__name__ else UserError)(message) from None
        if type(error) is ValueError and text.startswith(_BAD_OPTIONS):
            raise UserError(f"{' '.join(text.removeprefix(_BAD_OPTIONS).split())} Check what follows --.") from None
        # Only errors about options: the message of a worker was not written to be shown.
        if type(error) is ValueError and "\n" not in text and "[while running" not in text:
            raise UserError(text) from None
        raise _unexpected(error, text, outcome) from None
    except Exception as error:
        raise _unexpected(error, f"{_TRACEBACK}{type(error).__name__}:", outcome) from None


def _innermost(text: str) -> tuple[str, str]:
    """The frames of the first traceback in a text, and the line after them: kind and message of the error that was
    raised first. What follows may be more lines of its message, with cells, whatever they look like."""
    lines = text.partition(_TRACEBACK)[2].splitlines()
    frames = list(itertools.takewhile(lambda line: line.startswith(" "), lines))
    return "\n".join(frames), "".join(lines[len(frames) : len(frames) + 1])


def _unexpected(error: Exception, traceback_text: str, outcome: str) -> UserError:
    whole = "".join(traceback.format_exception(error))
    logging.getLogger(__name__).info("%s", whole)  # shown with --verbose alone: a cell may be in it
    if reason := reason_of_machine(whole):
        return UserError(f"{reason}; {outcome}.")
    frames, last = _innermost(traceback_text)
    kind = re.match(r"(?:\w+\.)*(\w+(?:Error|Exception|Interrupt))(?::|$)", last)
    places = re.findall(r'^  File "[^"]*/(dp_transforms/[^"]*)", line (\d+)', frames, re.MULTILINE)
    place = f" at {places[-1][0]}:{places[-1][1]}" if places else ""
    return UserError(
        f"the pipeline failed with {kind[1] if kind else 'an error'}{place}; {outcome}."
        " --verbose shows the whole traceback, which may contain cells of the log."
    )


@contextlib.contextmanager
def quiet_workers() -> Iterator[None]:
    """While the block runs, workers in this process print nothing at default verbosity.

    A worker that fails prints its whole traceback, and a message of other code in it may contain a cell of the data.
    Threads of Beam end with a traceback when a job is cancelled or its engine stops. On a busy machine they do so after
    the block: threads that were started in it stay quiet to their end.
    """
    if logging.getLogger().level < logging.CRITICAL:
        yield
        return
    from apache_beam.runners.worker import log_handler, sdk_worker

    report, others = threading.excepthook, set(threading.enumerate())
    quiet: set[threading.Thread] | None = None  # None: every thread

    def is_quiet(thread: threading.Thread | None) -> bool:
        return quiet is None or thread in quiet

    def print_unless_quiet(*words: Any, **options: Any) -> None:
        if not is_quiet(threading.current_thread()):
            print(*words, **options)

    threading.excepthook = lambda failed: None if is_quiet(failed.thread) else report(failed)
    for module in (sdk_worker, log_handler):
        module.print = print_unless_quiet  # a global of the module hides the builtin
    try:
        yield
    finally:
        quiet = set(threading.enumerate()) - others
