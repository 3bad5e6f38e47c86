"""What a command says. On stderr to the operator: nothing of it may be published.

While a command runs, `sys.stderr` and `sys.stdout` are `_Kept`: whatever writes to stderr (click, logs of Beam, a
traceback), no password, token or signature of a URL gets through; and neither ends a run because it takes nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys

import click

from dp_transforms.checks import without_secrets

TYPE_CHECKING = False  # what typing has, without its 10 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TextIO

    from rich.console import Console


def tell(text: str) -> None:
    click.echo(text, err=True)


class _Kept:
    """A standard stream. What it does not take is dropped, for good: a run goes on whoever can be told, and a command
    that has published must not seem to have failed. error: the first one."""

    def __init__(self, stream: TextIO, veil: Callable[[str], str]) -> None:
        self._stream, self._veil = stream, veil
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "buffer" and self._veil is without_secrets:  # the way around
            raise AttributeError(name)
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._kept():
            self._stream.write(self._veil(text))
        return len(text)

    def flush(self) -> None:
        with self._kept():
            self._stream.flush()

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # ValueError: it is closed
            self.error = error
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())  # also for Python, which flushes once more at its end


@contextlib.contextmanager
def kept_streams() -> Iterator[_Kept]:
    """While the block runs, both take everything, also where there are none. Gives standard output."""
    before = sys.stdout, sys.stderr
    with open(os.devnull, "w") as nowhere:
        output = _Kept(before[0] or nowhere, lambda text: text)
        sys.stdout, sys.stderr = output, _Kept(before[1] or nowhere, without_secrets)
        try:
            yield output
        finally:
            output.flush()
            sys.stdout, sys.stderr = before


def operator_console() -> Console:
    """For what only a terminal has: progress, and spinners where the time is not known."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


@contextlib.contextmanager
def shown_progress() -> Iterator[Callable[[str, int, int], None]]:
    """While the block runs a terminal shows what is done, and how long it may take yet, of what may take more than 3 s.
    Gone at the end. Elsewhere rich would leave an empty line."""
    console = operator_console()
    if not console.is_terminal:
        yield lambda *_: None
        return
    from rich import progress

    with progress.Progress(*progress.Progress.get_default_columns(), console=console, transient=True) as bars:
        task = bars.add_task("")
        yield lambda what, over, of: bars.update(task, description=what, completed=over, total=of)
