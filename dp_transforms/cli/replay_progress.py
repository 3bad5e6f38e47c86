"""The progress bar of a replay, on stderr."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dp_transforms.beam.read_events import ReadProgress
from dp_transforms.cli import operator_log
from dp_transforms.cli.operator_log import operator_console

_SECONDS_BETWEEN_UPDATES = 0.2
_SECONDS_BETWEEN_LINES = 5.0


@contextlib.contextmanager
def show_progress(progress: ReadProgress, total_bytes: int) -> Iterator[None]:
    """While the block runs in this thread, another one shows how much was read, and how fast."""
    console = operator_console()
    if operator_log.is_json():
        with _told(progress, total_bytes):
            yield
        return
    if not console.is_terminal:
        try:
            yield
        finally:
            progress.close()
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    done = threading.Event()
    with bar:
        task = bar.add_task("reading", total=max(1, total_bytes), rate="")
        watcher = threading.Thread(target=_watch, args=(progress, total_bytes, bar, task, done), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
            progress.close()


@contextlib.contextmanager
def _told(progress: ReadProgress, total_bytes: int) -> Iterator[None]:
    """A line for programs now and then, and one at the end."""
    done = threading.Event()

    def tell() -> None:
        operator_log.tell(
            f"read {progress.rows:,} rows",
            operator_log.PROGRESS,
            rows=progress.rows,
            bytes=progress.bytes,
            total_bytes=total_bytes,
        )

    def watch() -> None:
        while not done.wait(_SECONDS_BETWEEN_LINES):
            tell()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
        tell()
    finally:
        done.set()
        watcher.join()
        progress.close()


def _watch(progress: ReadProgress, total_bytes: int, bar: Progress, task: TaskID, done: threading.Event) -> None:
    while not done.wait(_SECONDS_BETWEEN_UPDATES):
        elapsed = bar.tasks[task].elapsed or 1.0
        finished = progress.bytes >= total_bytes
        if finished:
            bar.update(task, description="finding heavy items", total=None)  # nobody knows how long: a pulse
        else:
            rate = f"{progress.rows / elapsed:,.0f} events/s"
            bar.update(task, completed=progress.bytes, rate=rate)
