"""What a person sees of a run: reports on stdout as they appear, and a line for the operator on stderr."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich.console import Console

from dp_transforms.cli import operator_log
from dp_transforms.monitor.operator_counts import (
    CLOCK_LAG_SECONDS,
    EVENTS_AFTER_STOP,
    EVENTS_FROM_THE_FUTURE,
    EVENTS_LATE,
    EVENTS_OUTSIDE_DOMAIN,
    EVENTS_OUTSIDE_RANGE,
    EVENTS_READ,
    EVENTS_REJECTED,
    PAIRS_UNPAID,
    PENDING_WINDOWS,
)
from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.reports import encode_report
from dp_transforms.views.report_table import is_ascii_only, tells_epsilon, windows_table

_ITEMS_PER_WINDOW = 12
_SECONDS_BETWEEN_LINES = 60.0  # if stderr is a file
_SECONDS_BETWEEN_JSON_LINES = 10.0


class StreamStatus:
    """Prints reports as they come. stdout: a table on a terminal, else a JSON line for each window."""

    def __init__(self, covered: str = "--start .. --end") -> None:
        """covered: outside of which events do not count."""
        self._covered = covered
        self._out = Console(highlight=False)
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)
        self._windows_shown = 0
        self._with_epsilon = False
        self._has_line = False
        self._last_line_at = float("-inf")
        self._last_events: tuple[float, int] | None = None

    @property
    def windows_shown(self) -> int:
        return self._windows_shown

    def tell(self, text: str) -> None:
        """A line for the operator, on stderr."""
        self._clear()
        if operator_log.is_json():
            operator_log.tell(text)
        else:
            self._err.print(text, markup=False)

    def announce(self, text: str) -> None:
        """A line of declared values, on stdout; only on a terminal."""
        if self._out.is_terminal:
            self._out.print(text, markup=False, soft_wrap=True)

    def show_reports(self, reports: Sequence[WindowReport]) -> None:
        """reports: none that was shown before."""
        if not reports:
            return
        self._clear()
        if self._out.is_terminal:
            self._with_epsilon = self._with_epsilon or tells_epsilon(reports)  # rows must not lose a column again
            table = windows_table(
                reports,
                max_items=_ITEMS_PER_WINDOW,
                ascii_only=is_ascii_only(self._out),
                with_epsilon=self._with_epsilon,
            )
            table.show_header = self._windows_shown == 0
            self._out.print(table, end="")
        else:
            for report in reports:
                self._out.file.write(encode_report(report, ascii_only=True) + "\n")
            self._out.file.flush()
        self._windows_shown += len(reports)

    def show_operator_line(self, counts: Mapping[str, int], gauges: Mapping[str, int]) -> None:
        now = time.monotonic()
        line = self._operator_line(counts, gauges, now)
        if operator_log.is_json():
            if now - self._last_line_at >= _SECONDS_BETWEEN_JSON_LINES:
                self._last_line_at = now
                operator_log.tell(line, operator_log.PROGRESS, counts=dict(counts), gauges=dict(gauges))
        elif self._err.is_terminal:
            self._clear()
            self._err.print(line[: self._err.width - 1], end="", markup=False, style="dim")
            self._has_line = True
        elif now - self._last_line_at >= _SECONDS_BETWEEN_LINES:
            self._last_line_at = now
            self._err.print(line, markup=False)

    def close(self) -> None:
        self._clear()

    def _operator_line(self, counts: Mapping[str, int], gauges: Mapping[str, int], now: float) -> str:
        events = counts.get(EVENTS_READ, 0)
        parts = [f"{events:,} events"]
        if self._last_events is not None and now > self._last_events[0]:
            parts.append(f"{max(0, events - self._last_events[1]) / (now - self._last_events[0]):,.0f}/s")
        self._last_events = now, events
        if CLOCK_LAG_SECONDS in gauges:
            parts.append(f"clock {gauges[CLOCK_LAG_SECONDS]:,} s behind")
        if PENDING_WINDOWS in gauges:
            parts.append(f"{gauges[PENDING_WINDOWS]:,} windows pending")
        for name, words in (
            (EVENTS_REJECTED, "rejected"),
            (EVENTS_LATE, "late"),
            (EVENTS_FROM_THE_FUTURE, "from the future"),
            (EVENTS_AFTER_STOP, "after the stop"),
            (EVENTS_OUTSIDE_RANGE, f"outside {self._covered}"),
            (EVENTS_OUTSIDE_DOMAIN, "of other items than --domain-file"),
            (PAIRS_UNPAID, "user and item pairs beyond --most-looks"),
        ):
            if counts.get(name):
                parts.append(f"{counts[name]:,} {words}")
        # The warning comes first: a narrow terminal cuts the end.
        return f"[not covered by the guarantee, for the operator: {', '.join(parts)}]"

    def _clear(self) -> None:
        if self._has_line:
            self._err.file.write("\r\x1b[2K")
            self._err.file.flush()
            self._has_line = False
