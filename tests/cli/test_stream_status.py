"""What a run shows while it goes on: reports as they come, and a line for the operator that says what it is."""

import io

from rich.console import Console

from dp_transforms.cli.stream_status import StreamStatus
from dp_transforms.core.operator_counts import (
    CLOCK_LAG_SECONDS,
    EVENTS_LATE,
    EVENTS_READ,
    EVENTS_REJECTED,
    PENDING_WINDOWS,
)


def status(*, is_terminal):
    """With what it writes to stdout and stderr."""
    screens = [io.StringIO(), io.StringIO()]
    out, err = (
        Console(file=screen, force_terminal=is_terminal, width=120, highlight=False, soft_wrap=is_err)
        for is_err, screen in enumerate(screens)
    )
    return StreamStatus(out=out, err=err), screens


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
