"""What a run shows while it goes on: reports as they come, and a line for the operator that says what it is."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from dp_transforms import HeavyHitter, WindowReport
from dp_transforms.cli import stream_status
from dp_transforms.monitor.operator_counts import (
    CLOCK_LAG_SECONDS,
    EVENTS_LATE,
    EVENTS_OUTSIDE_DOMAIN,
    EVENTS_OUTSIDE_RANGE,
    EVENTS_READ,
    EVENTS_REJECTED,
    PENDING_WINDOWS,
)

HOUR = 3_600_000_000


def report(hour: int) -> WindowReport:
    heavy = [HeavyHitter(f"item-{hour}", "above", None)]
    return WindowReport("events", hour * HOUR, (hour + 1) * HOUR, heavy, 1.0, 1e-9, 0.5)


def status(
    monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool
) -> tuple[stream_status.StreamStatus, list[io.StringIO]]:
    """With what it writes to stdout and stderr."""
    screens = [io.StringIO(), io.StringIO()]

    def console(stderr: bool = False, soft_wrap: bool = False, **options: bool) -> Console:
        return Console(file=screens[stderr], force_terminal=is_terminal, width=120, soft_wrap=soft_wrap, **options)

    monkeypatch.setattr(stream_status, "Console", console)
    return stream_status.StreamStatus(), screens


def test_a_pipe_gets_a_json_line_for_each_window(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, (out, err) = status(monkeypatch, is_terminal=False)
    shown.announce("guarantee")
    shown.show_reports([report(0)])
    shown.show_reports([])
    shown.show_reports([report(1)])
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["heavy_hitters"][0]["item"] for line in lines] == ["item-0", "item-1"]
    assert shown.windows_shown == 2
    assert err.getvalue() == ""


def test_a_terminal_gets_rows_under_one_head(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, (out, _) = status(monkeypatch, is_terminal=True)
    shown.announce("guarantee")
    shown.show_reports([report(0)])
    shown.show_reports([])
    shown.show_reports([report(1)])
    text = out.getvalue()
    assert text.count("start (UTC)") == text.count("guarantee") == text.count("item-0") == text.count("item-1") == 1


def test_the_operators_line_is_marked_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {EVENTS_READ: 5000, EVENTS_REJECTED: 2, EVENTS_LATE: 0}
    gauges = {CLOCK_LAG_SECONDS: 3, PENDING_WINDOWS: 1}
    shown, (_, err) = status(monkeypatch, is_terminal=True)
    shown.show_operator_line(counts, gauges)
    text = err.getvalue()
    for part in ("not covered by the guarantee", "5,000 events", "clock 3 s behind", "1 windows pending", "2 rejected"):
        assert part in text
    assert "late" not in text
    assert "\n" not in text
    shown.tell("next")
    assert "\r\x1b[2K" in err.getvalue()


def test_a_file_gets_the_operators_line_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, (_, err) = status(monkeypatch, is_terminal=False)
    for _ in range(3):
        shown.show_operator_line({EVENTS_READ: 1, EVENTS_OUTSIDE_RANGE: 7, EVENTS_OUTSIDE_DOMAIN: 9}, {})
    assert err.getvalue() == (
        "[not covered by the guarantee, for the operator: 1 events, 7 outside --start .. --end, 9 of other items than"
        " --domain-file]\n"
    )
