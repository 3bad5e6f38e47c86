"""What a run shows while it goes on: reports as they come, and a line for the operator that says what it is."""

import io
import json

from rich.console import Console

from dp_transforms import HeavyHitter, WindowReport
from dp_transforms.cli.stream_status import StreamStatus
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


def report(hour):
    heavy = [HeavyHitter(f"item-{hour}", "above", None)]
    return WindowReport("events", hour * HOUR, (hour + 1) * HOUR, heavy, 1.0, 1e-9, 0.5)


def status(*, is_terminal):
    """With what it writes to stdout and stderr."""
    screens = [io.StringIO(), io.StringIO()]
    out, err = (
        Console(file=screen, force_terminal=is_terminal, width=120, highlight=False, soft_wrap=is_err)
        for is_err, screen in enumerate(screens)
    )
    return StreamStatus(out=out, err=err), screens


def test_a_pipe_gets_json_lines_and_a_terminal_rows_under_one_head():
    said = {}
    for is_terminal in (False, True):
        shown, (out, err) = status(is_terminal=is_terminal)
        shown.announce("guarantee")
        for reports in ([report(0)], [], [report(1)]):
            shown.show_reports(reports)
        assert err.getvalue() == ""
        said[is_terminal] = out.getvalue()
    lines = [json.loads(line) for line in said[False].splitlines()]
    assert [line["heavy_hitters"][0]["item"] for line in lines] == ["item-0", "item-1"]
    assert [said[True].count(word) for word in ("start (UTC)", "guarantee", "item-0", "item-1")] == [1] * 4


def test_the_operators_line_is_marked_and_replaced():
    counts = {EVENTS_READ: 5000, EVENTS_REJECTED: 2, EVENTS_LATE: 0}
    gauges = {CLOCK_LAG_SECONDS: 3, PENDING_WINDOWS: 1}
    shown, (_, err) = status(is_terminal=True)
    shown.show_operator_line(counts, gauges)
    text = err.getvalue()
    for part in ("not covered by the guarantee", "5,000 events", "clock 3 s behind", "1 windows pending", "2 rejected"):
        assert part in text
    assert "late" not in text
    assert "\n" not in text
    shown.tell("next")
    assert "\r\x1b[2K" in err.getvalue()


def test_a_file_gets_the_operators_line_seldom():
    shown, (_, err) = status(is_terminal=False)
    for _ in range(3):
        shown.show_operator_line({EVENTS_READ: 1, EVENTS_OUTSIDE_RANGE: 7, EVENTS_OUTSIDE_DOMAIN: 9}, {})
    assert err.getvalue() == (
        "[not covered by the guarantee, for the operator: 1 events, 7 outside --start .. --end, 9 of other items than"
        " --domain-file]\n"
    )
