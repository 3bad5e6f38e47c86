"""The errors of a pipeline, each in one line. Messages of other code may contain a cell, so they are not shown."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from dp_transforms.cli.options import LogError
from dp_transforms.errors import StreamError, UserError
from dp_transforms.logs import EventFileError
from dp_transforms.reports import ReportFileError
from dp_transforms.runs.state_header import StateError
from dp_transforms.workers import PoolError

_OURS = "EventFileError|ReportFileError|StreamError|StateError|PoolError"  # their messages contain no cell
_WHILE_RUNNING = re.compile(r" \[while running .*\]$")  # which Beam adds
_BAD_OPTIONS = "Pipeline has validations errors:"  # Beam's own check of its options, one per line


@contextlib.contextmanager
def errors_in_one_line(outcome: str) -> Iterator[None]:
    """Turns an error of a pipeline into a UserError. outcome: what became of the run, for the end of the line."""
    try:
        yield
    except UserError:
        raise
    except EventFileError as error:  # of this process
        raise LogError(_WHILE_RUNNING.sub("", str(error))) from None
    except (ReportFileError, StreamError, StateError, PoolError) as error:
        raise UserError(_WHILE_RUNNING.sub("", str(error))) from None
    except (ValueError, RuntimeError) as error:
        text = str(error)
        # A signal that comes while a worker runs in this process is wrapped as well.
        if re.search(r"^KeyboardInterrupt\b", text, re.MULTILINE):
            raise KeyboardInterrupt from None
        # Errors of workers arrive as the text of a traceback.
        ours = re.findall(rf"^\S*\.({_OURS}): (.*?)(?: \[while running .*)?$", text, re.MULTILINE)
        if ours:
            kind, message = ours[-1]
            raise (LogError if kind == EventFileError.__name__ else UserError)(message) from None
        if type(error) is ValueError and text.startswith(_BAD_OPTIONS):
            raise UserError(f"{' '.join(text.removeprefix(_BAD_OPTIONS).split())} Check what follows --.") from None
        # Only errors about options: the message of a worker was not written to be shown.
        if type(error) is ValueError and "\n" not in text and "[while running" not in text:
            raise UserError(text) from None
        raise UserError(_without_message(text, outcome)) from None
    except Exception as error:
        raise UserError(_without_message(f"{type(error).__name__}:", outcome)) from None


def _without_message(traceback_text: str, outcome: str) -> str:
    kinds = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception|Interrupt)): ?", traceback_text, re.MULTILINE)
    places = re.findall(r'File "[^"]*/(dp_transforms/[^"]*)", line (\d+)', traceback_text)
    place = f" at {places[-1][0]}:{places[-1][1]}" if places else ""
    return (
        f"the pipeline failed with {kinds[-1] if kinds else 'an error'}{place}; {outcome}."
        " --verbose shows the whole traceback, which may contain cells of the log."
    )
