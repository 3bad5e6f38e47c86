"""What a command tells the operator on stderr: lines of text, or with ``--log-format json`` one JSON object a line.

All that commands say there goes through here, so that both formats have it. Nothing of it may be published.

While a command runs, `sys.stderr` is a `_Veiled`: whatever writes to it (click, logs of Beam, a traceback), no
password, token or signature of a URL gets through.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import sys

import click

from dp_transforms.checks import without_secrets
from dp_transforms.cli import exit_signals

TYPE_CHECKING = False  # what typing has, without its 10 ms
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TextIO

    from rich.console import Console
    from rich.progress import Progress

TEXT, JSON = "text", "json"
STATUS, WARNING, ERROR, PROGRESS = "status", "warning", "error", "progress"
_state: dict[str, object] = {"format": TEXT, "command": "", "is_done": False}


def use_format(log_format: str, command: str) -> None:
    """From now on, for this command. Also what Beam logs with --verbose."""
    _state.update(format=log_format, command=command, is_done=False)
    exit_signals.stopped_line = b"shh: stopped.\n"
    if log_format == JSON:
        stopped = {"level": ERROR, "command": command, "message": "stopped."}  # the handler of a signal asks no clock
        exit_signals.stopped_line = f"{json.dumps(stopped)}\n".encode()
        for handler in logging.getLogger().handlers:
            handler.setFormatter(_LogFormatter())


def is_json() -> bool:
    return _state["format"] == JSON


def note_done() -> None:
    """What was asked for is written. That nobody can be told of it does not change that, nor the exit code."""
    _state["is_done"] = True


def is_done() -> bool:
    return bool(_state["is_done"])


def tell(text: str, level: str = STATUS, **fields: object) -> None:
    """One message. level: STATUS, WARNING, ERROR or PROGRESS. fields: numbers behind it, for programs; in the text
    format they are not shown."""
    if is_json():
        text = text.removeprefix("shh: ")
        level = WARNING if text.startswith("warning: ") else level
        sys.stderr.write(_line(text.removeprefix("warning: "), level, fields) + "\n")
        sys.stderr.flush()
    else:
        click.echo(text, err=True)


class _Veiled:
    """Standard error without secrets. What it does not take is dropped: there is nobody to tell, and a command that has
    published must not seem to have failed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # the way around
            raise AttributeError(name)
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
            self._stream.write(without_secrets(text))
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


@contextlib.contextmanager
def veiled_standard_error() -> Iterator[None]:
    """While the block runs, no secret goes to `sys.stderr`, which takes everything, also if there is none."""
    before = sys.stderr
    with open(os.devnull, "w") if before is None else contextlib.nullcontext(before) as stream:
        sys.stderr = _Veiled(stream)
        try:
            yield
        finally:
            sys.stderr = before


def operator_console() -> Console:
    """For what only a terminal has, and never with JSON: `operator_progress`, and spinners where the time is not
    known."""
    from rich.console import Console

    is_silent = is_json() or "JPY_PARENT_PID" in os.environ  # a cell of a notebook keeps each state of a bar
    return Console(stderr=True, highlight=False, force_terminal=False if is_silent else None)


def operator_progress() -> Progress:
    """Bars with the time that is left, for what may take more than 3 s; gone at the end. Else rich would leave an empty
    line where nobody looks."""
    from rich import progress

    console = operator_console()
    *usual, left = progress.Progress.get_default_columns()
    columns = (*usual, progress.TimeElapsedColumn(), progress.TextColumn("[dim]left[/]"), left)
    return progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _line(text: str, level: str, fields: dict[str, object]) -> str:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    # Before quotes are escaped, so that the end of a secret is found.
    record = {"time": now, "level": level, "command": _state["command"], "message": without_secrets(text), **fields}
    return json.dumps(record, ensure_ascii=True)


class _LogFormatter(logging.Formatter):
    """Of records of Python's logging."""

    def format(self, record: logging.LogRecord) -> str:
        level = ERROR if record.levelno >= logging.ERROR else WARNING if record.levelno >= logging.WARNING else STATUS
        return _line(super().format(record), level, {"logger": record.name})
