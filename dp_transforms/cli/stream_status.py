"""What is seen of a run while it goes on: reports on stdout as they appear, and a line for the operator on stderr.

The operator's numbers depend on the data and are not covered by the guarantee (docs/deploy.md, what to watch).
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from dp_transforms.cli.output_file import write_output
from dp_transforms.cli.shared_options import ViewOptions
from dp_transforms.core import operator_counts as names
from dp_transforms.core.window_report import RunEnded, WindowReport
from dp_transforms.errors import UserError
from dp_transforms.reports import ReportHeader, encode_report
from dp_transforms.reports.trends import trends
from dp_transforms.views.page.report_columns import plan_of
from dp_transforms.views.page.report_page import report_page
from dp_transforms.views.report_words import (
    changes_legend,
    counted,
    ended_words,
    is_ascii_only,
    tells_epsilon,
    windows_table,
)

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
        if not reports:
            return
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
        if not counts and not gauges:
            return
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
            (names.EVENTS_OUTSIDE_DOMAIN, "of other items than --public-items"),
            (names.CONTRIBUTIONS_UNPAID, "contributions beyond --most-contributions"),
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


# ``shh stream --html``: the page of a run so far, written anew as windows close.
#
# A page takes the place of the one before whole or not at all. The newest windows are on it, and how many came before
# them: a page after ten thousand windows costs as much as one after two hundred. ``shh show --html`` makes one of all.

_MOST_WINDOWS = 200  # with heavy items
_MOST_ITEMS = 20_000  # of all these windows; so they have fewer sizes than a page can hold (`report_columns`)


class StreamPage:
    """titles: of `ViewOptions.read_titles`. tell: says a line to the operator."""

    def __init__(
        self,
        path: str,
        header: ReportHeader,
        view: ViewOptions,
        titles: Mapping[str, str],
        tell: Callable[[str], None],
    ) -> None:
        self._path, self._header, self._view, self._titles, self._tell = path, header, view, titles, tell
        self._newest: collections.deque[WindowReport] = collections.deque()
        self._items = 0  # of the newest
        self._earlier = 0  # windows before the newest
        self._ended: RunEnded | None = None
        self._is_due = True  # a run that has only begun has a page too
        self._is_troubled = False

    def update(self, reports: Sequence[WindowReport], ended: RunEnded | None) -> None:
        """reports: none that came before. A page that cannot be written is tried again, and ends no run."""
        for report in reports:
            self._newest.append(report)
            self._items += len(report.heavy_hitters)
            while len(self._newest) > 1 and (len(self._newest) > _MOST_WINDOWS or self._items > _MOST_ITEMS):
                self._items -= len(self._newest.popleft().heavy_hitters)
                self._earlier += 1
        self._is_due = self._is_due or bool(reports) or ended != self._ended
        self._ended = ended
        if not self._is_due:
            return
        try:
            write_output(self._path, self._page(), force=True, is_all=False)
        except UserError as error:
            if not self._is_troubled:
                self._tell(f"Warning: --html: {error} The run goes on, and it is tried again.")
            self._is_troubled = True
        else:
            self._is_due = self._is_troubled = False

    def _page(self) -> str:
        state = []
        if self._earlier:
            state.append(f"{counted(self._earlier, 'earlier window')} with heavy items: shh show --html has all.")
        if self._ended is None:
            state.append("The run goes on: further windows may follow.")
        else:
            plan = plan_of(self._header)
            state.append(ended_words(self._ended, None if plan is None else plan.schedule.horizon))
        return report_page(
            self._header,
            self._newest,
            self._view.zone,
            self._titles,
            " ".join(state),
            self._view.page_title,
            goes_on=self._ended is None,
        )
