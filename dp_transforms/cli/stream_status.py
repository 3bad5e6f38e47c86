"""What is seen of a run while it goes on: reports on stdout as they appear, and a line for the operator on stderr.

The operator's numbers depend on the data and are not covered by the guarantee (docs/deploy.md, what to watch).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from dp_transforms.monitor import operator_counts as names
from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.reports import encode_report
from dp_transforms.reports.trends import trends
from dp_transforms.views.report_words import changes_legend, is_ascii_only, tells_epsilon, windows_table

_ITEMS_PER_WINDOW = 8
_SECONDS_BETWEEN_LINES = 60.0  # if stderr is a file


class StreamStatus:
    """Prints reports as they come. stdout: a table on a terminal, else a JSON line for each window."""

    def __init__(
        self,
        plan: Mapping[str, Any] | None = None,
        out: Console | None = None,
        err: Console | None = None,
    ) -> None:
        """plan: of the run, as reports have it. out, err: None for those of this process."""
        self._plan = plan or {}
        self._latest: list[WindowReport] = []
        self._out = out or Console(highlight=False)
        self._err = err or Console(stderr=True, highlight=False, soft_wrap=True)
        self._windows_shown = 0
        self._with_epsilon = False
        self._has_line = False
        self._last_line_at = float("-inf")
        self._last_events: tuple[float, int] | None = None

    def tell(self, text: str) -> None:
        """A line for the operator, on stderr."""
        self._clear()
        self._err.print(text, markup=False)

    def announce(self, text: str) -> None:
        """A line of declared values, on stdout; only on a terminal."""
        if self._out.is_terminal:
            self._out.print(text, markup=False, soft_wrap=True)

    def show_reports(self, reports: Sequence[WindowReport]) -> None:
        """reports: none that was shown before."""
        if reports:
            self._show(reports)

    def _show(self, reports: Sequence[WindowReport]) -> None:
        self._clear()
        if self._out.is_terminal:
            self._with_epsilon = self._with_epsilon or tells_epsilon(reports)  # rows must not lose a column again
            found = [each for each in trends(self._plan, [*self._latest, *reports]) if each.report in reports]
            self._latest = [found[-1].report]
            if not self._windows_shown:
                self.announce(changes_legend(self._plan, is_ascii_only(self._out)))
            table = windows_table(
                found,
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
        """Nothing while the engine has none."""
        if counts or gauges:
            self._show_line(counts, gauges)

    def _show_line(self, counts: Mapping[str, int], gauges: Mapping[str, int]) -> None:
        now = time.monotonic()
        line = self._operator_line(counts, gauges, now)
        if self._err.is_terminal:
            self._clear()
            self._err.print(line[: self._err.width - 1], end="", markup=False, style="dim")
            self._has_line = True
        elif now - self._last_line_at >= _SECONDS_BETWEEN_LINES:
            self._last_line_at = now
            self._err.print(line, markup=False)

    def close(self) -> None:
        self._clear()

    def _operator_line(self, counts: Mapping[str, int], gauges: Mapping[str, int], now: float) -> str:
        events = counts.get(names.EVENTS_READ, 0)
        parts = [f"{events:,} events"]
        if self._last_events is not None and now > self._last_events[0]:
            parts.append(f"{max(0, events - self._last_events[1]) / (now - self._last_events[0]):,.0f}/s")
        self._last_events = now, events
        if names.CLOCK_LAG_SECONDS in gauges:
            parts.append(f"clock {gauges[names.CLOCK_LAG_SECONDS]:,} s behind")
        if names.PENDING_WINDOWS in gauges:
            parts.append(f"{gauges[names.PENDING_WINDOWS]:,} windows pending")
        for name, words in (
            (names.EVENTS_REJECTED, "rejected"),
            (names.EVENTS_LATE, "late"),
            (names.EVENTS_FROM_THE_FUTURE, "from the future"),
            (names.EVENTS_AFTER_STOP, "after the stop"),
            (names.EVENTS_OUTSIDE_RANGE, "outside --start .. --end"),
            (names.EVENTS_OUTSIDE_DOMAIN, "of other items than --domain-file"),
            (names.PAIRS_UNPAID, "user and item pairs beyond --most-looks"),
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
