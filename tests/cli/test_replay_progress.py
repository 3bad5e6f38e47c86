"""On a terminal a replay shows how far it is and how fast; elsewhere it stays silent."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from dp_transforms.beam.read_events import ReadProgress
from dp_transforms.cli import replay_runs


def shown_while(steps: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool) -> str:
    """What is printed while a replay of 1,000 bytes advances by (rows, bytes) at a time."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=is_terminal, width=100)
    monkeypatch.setattr(replay_runs, "operator_console", lambda: console)
    monkeypatch.setattr(replay_runs, "_SECONDS_BETWEEN_UPDATES", 0.01)
    progress = ReadProgress()
    with replay_runs.show_progress(progress, 1000):
        for rows, size in steps:
            ReadProgress.advance(progress.token, rows, size)
            deadline = time.monotonic() + 60
            while is_terminal and not _seen(screen, progress) and time.monotonic() < deadline:
                time.sleep(0.01)
    ReadProgress.advance(progress.token, 1, 1)  # a late one after the end is not counted
    assert progress.rows == sum(rows for rows, _ in steps)
    return screen.getvalue()


def _seen(screen: io.StringIO, progress: ReadProgress) -> bool:
    wanted = "finding heavy items" if progress.bytes >= 1000 else f"{progress.bytes / 10:.0f} %"
    return wanted in screen.getvalue()


def test_a_terminal_shows_share_and_speed_and_then_the_second_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown_while([(40, 250), (40, 250), (80, 500)], monkeypatch, is_terminal=True)
    for words in ("reading", "25 %", "50 %", "events/s", "finding heavy items"):
        assert words in text


def test_a_pipe_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_while([(40, 1000)], monkeypatch, is_terminal=False) == ""
