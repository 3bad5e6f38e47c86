"""What a command tells the operator on stderr: lines of text, or with ``--log-format json`` one JSON object a line.

All that commands say there goes through here, so that both formats have it. Nothing of it may be published.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys

import click

from dp_transforms.cli import exit_signals

TYPE_CHECKING = False  # what typing has, without its 10 ms
if TYPE_CHECKING:
    from rich.console import Console

TEXT, JSON = "text", "json"
STATUS, WARNING, ERROR, PROGRESS = "status", "warning", "error", "progress"
_state = {"format": TEXT, "command": ""}


def use_format(log_format: str, command: str) -> None:
    """From now on, for this command. Also what Beam logs with --verbose."""
    _state.update(format=log_format, command=command)
    exit_signals.stopped_line = b"shh: stopped.\n"
    if log_format == JSON:
        stopped = {"level": ERROR, "command": command, "message": "stopped."}  # the handler of a signal asks no clock
        exit_signals.stopped_line = f"{json.dumps(stopped)}\n".encode()
        for handler in logging.getLogger().handlers:
            handler.setFormatter(_LogFormatter())


def is_json() -> bool:
    return _state["format"] == JSON


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


def operator_console() -> Console:
    """For bars and spinners, which only a terminal has, and never with JSON."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, force_terminal=False if is_json() else None)


def _line(text: str, level: str, fields: dict[str, object]) -> str:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    record = {"time": now, "level": level, "command": _state["command"], "message": text, **fields}
    return json.dumps(record, ensure_ascii=True)


class _LogFormatter(logging.Formatter):
    """Of records of Python's logging."""

    def format(self, record: logging.LogRecord) -> str:
        level = ERROR if record.levelno >= logging.ERROR else WARNING if record.levelno >= logging.WARNING else STATUS
        return _line(super().format(record), level, {"logger": record.name})
