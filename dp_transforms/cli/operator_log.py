"""What a command tells the operator on stderr. Nothing of it may be published.

While a command runs, `sys.stderr` is a `_Veiled`: whatever writes to it (click, logs of Beam, a traceback), no
password, token or signature of a URL gets through.
"""

from __future__ import annotations

import contextlib
import os
import sys

import click

from dp_transforms.checks import without_secrets

TYPE_CHECKING = False  # what typing has, without its 10 ms
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TextIO

    from rich.console import Console
    from rich.progress import Progress

_state = {"is_done": False}


def begin() -> None:
    """A command begins, which has not done anything yet."""
    _state["is_done"] = False


def note_done() -> None:
    """What was asked for is written. That nobody can be told of it does not change that, nor the exit code."""
    _state["is_done"] = True


def is_done() -> bool:
    return _state["is_done"]


def tell(text: str) -> None:
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
    """For what only a terminal has: `operator_progress`, and spinners where the time is not known."""
    from rich.console import Console

    is_notebook = "JPY_PARENT_PID" in os.environ  # a cell keeps each state of a bar
    return Console(stderr=True, highlight=False, force_terminal=False if is_notebook else None)


def operator_progress() -> Progress:
    """Bars with the time that is left, for what may take more than 3 s; gone at the end. Else rich would leave an empty
    line where nobody looks."""
    from rich import progress

    console = operator_console()
    *usual, left = progress.Progress.get_default_columns()
    columns = (*usual, progress.TimeElapsedColumn(), progress.TextColumn("[dim]left[/]"), left)
    return progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
