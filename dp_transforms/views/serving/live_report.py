"""What browsers get of a report that goes on: a page of the windows so far, and a message for each window since.

The page is that of ``shh show --html``, which goes on as windows close. It is made anew once the messages since are a
tenth of its windows. So all work together is linear in the windows, and whoever opens the page, or comes back, has
little to catch up with.
"""

from __future__ import annotations

import collections
import datetime
import functools
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from dp_transforms.errors import UserError
from dp_transforms.monitor.window_report import HeavyHitter, RunEnded, WindowReport
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.trends import size_of
from dp_transforms.views.page.html_text import ServedFile, asset, data_block, escaped, served_document
from dp_transforms.views.page.report_columns import ReportColumns, Windows, in_words, legend_of, plan_of, report_columns
from dp_transforms.views.page.report_page import (
    Extent,
    check_size,
    extent_of,
    page_data,
    page_parts,
    page_scripts,
    strength_title,
    summary,
)
from dp_transforms.views.report_words import ended_words, shown_text
from dp_transforms.views.serving.live_view import Followed, View, event_bytes, packed
from dp_transforms.views.serving.report_source import Found, ReportSource

_MADE = (
    "Made by <code>shh serve</code> from released values and the plan alone. This page hears from its server as windows"
    " close, and from nobody else."
)
_LIVE = '<p class="live" id="live-state" role="status" data-well="no">Not connected yet.</p>'
_OPERATOR = """<aside class="operator" aria-labelledby="operator"><h2 id="operator">For the operator</h2>
<p class="note">Exact numbers of the engine, <strong>not covered by the guarantee</strong>: do not publish them.</p>
<div id="operator-numbers">Not heard of yet.</div></aside>"""
_FEW_MESSAGES = 32  # a page is not made anew for fewer


@functools.cache
def served_files() -> tuple[ServedFile, ...]:
    """The style and the scripts of the page, in the order in which they run. Their names change with their contents."""
    scripts = [*page_scripts(), *((name, asset(name)) for name in ("connection.js", "live.js"))]
    return tuple(ServedFile.of(name, content) for name, content in [("page.css", asset("page.css")), *scripts])


class LiveReport(Followed):
    """Follows a source.

    most_windows: a page shows the latest so many, of those with heavy items. titles: label -> what people call it.
    title: as of `report_page`.
    """

    _header: ReportHeader
    _plan: Plan | None
    _ended: RunEnded | None
    _goes_on: bool
    _reports: collections.deque[WindowReport]
    _windows: Windows  # of the page
    _base_windows: int  # how many reports it holds
    _extent: Extent  # of the page and all messages, as what follows
    _last_start: int
    _shown: dict[str, str | None]
    _kinds: set[tuple[Any, ...]]

    def __init__(
        self,
        source: ReportSource,
        zone: datetime.tzinfo,
        titles: Mapping[str, str],
        most_windows: int,
        *,
        title: str = "",
        for_operator: bool = False,
    ) -> None:
        """Reads the source for the first time. Raises UserError if there is no report."""
        self._source = source
        self._zone = zone
        self._titles = titles
        self._title = title
        self._most_windows = most_windows
        self._for_operator = for_operator
        found = source.poll()
        assert found is not None, "the first reading of a source finds something"
        self._begin(found)

    def files(self) -> tuple[ServedFile, ...]:
        return served_files()

    def read(self) -> bool:
        found = self._source.poll()
        if found is not None and (found.is_other or not self._grow(found)):
            self._begin(found)
        return found is not None

    @property
    def header(self) -> ReportHeader:
        return self._header

    def _begin(self, found: Found) -> None:
        """All anew, also the numbering: pages that are open load again."""
        if found.is_other:
            self._header, self._plan = found.header, plan_of(found.header)
            self._reports = collections.deque(found.reports, maxlen=self._most_windows)
        self._ended, self._goes_on = found.ended, found.goes_on
        self._make_page(epoch=secrets.token_hex(8), first=0, number=0, messages=[])

    def _grow(self, found: Found) -> bool:
        """A message for each report; False if an open page cannot add one of them to what it shows."""
        self._ended, self._goes_on = found.ended, found.goes_on
        self._reports.extend(found.reports)
        view = self.view
        for report in found.reports:
            if not self._takes(report):
                return False
            self._count(report)
            fields = json.dumps(self._message(report), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            view.messages.append(event_bytes("window", fields, f"{view.epoch}.{view.last + 1}"))
        view.status, view.state = self._summary(), self._badge()
        since = view.last - view.shown
        if since >= _FEW_MESSAGES and since >= self._base_windows // 10:
            # Messages since the page before this one stay, for browsers that come back.
            kept = view.messages[view.shown - view.first :]
            self._make_page(epoch=view.epoch, first=view.shown, number=view.last, messages=kept)
        return True

    def _takes(self, report: WindowReport) -> bool:
        """Whether a page can add this window: the rule of `numberOf` in columns.js; and its items, by what it shows of
        their labels."""
        windows, shown = self._windows, {shown_text(hitter.item): hitter.item for hitter in report.heavy_hitters}
        if not windows.count or report.stream != self._header.stream:
            return False
        if len(shown) < len(report.heavy_hitters) or any(
            self._shown.get(text, item) != item for text, item in shown.items()
        ):
            return False
        start, end = report.window_start, report.window_end
        first_start, first_end = int(windows.starts[0]), int(windows.ends[0])
        if windows.step:
            is_on_grid = (start - first_start) % windows.step == 0 and end - start == first_end - first_start
            return is_on_grid and start >= first_start
        return bool(start > self._last_start)

    def _count(self, report: WindowReport) -> None:
        self._shown.update((shown_text(hitter.item), hitter.item) for hitter in report.heavy_hitters)
        kinds = {hitter.kind for hitter in report.heavy_hitters} - self._kinds
        if kinds:
            self._kinds |= kinds
            self._name_sizes()
        self._last_start = max(self._last_start, report.window_start)
        end = max(self._extent.end, report.window_end)
        count = self._extent.windows + bool(report.heavy_hitters)
        self._extent = Extent(len(self._shown), count, self._extent.start, end)

    def _message(self, report: WindowReport) -> dict[str, Any]:
        return {
            "start": report.window_start / 1000,
            "end": report.window_end / 1000,
            "entries": [self._entry(hitter) for hitter in report.heavy_hitters],
            "classes": self._legend.classes,
            "bounds": self._legend.bounds,
            "strength": self._strength_title,
            "summary": self._summary(),
        }

    def _entry(self, hitter: HeavyHitter) -> list[str | int]:
        title = self._titles.get(hitter.item, "")
        return [shown_text(hitter.item), title and shown_text(title), in_words(hitter), size_of(hitter)]

    def _name_sizes(self) -> None:
        kinds = [HeavyHitter("", *kind) for kind in self._kinds]
        self._legend, self._strength_title = legend_of(kinds), strength_title(map(in_words, kinds))

    def _make_page(self, *, epoch: str, first: int, number: int, messages: list[bytes]) -> None:
        reports: Sequence[WindowReport] = list(self._reports)
        while True:
            try:
                page, columns = self._page(reports, f"{epoch}.{number}")
                break
            except UserError:  # more than a page can hold: the latest half of it
                if len(reports) < 2:
                    raise
                reports = reports[len(reports) // 2 :]
        self._windows = columns.windows
        self._base_windows = len(reports)
        self._extent = extent_of(columns)
        self._last_start = max((report.window_start for report in reports), default=0)
        # What a page shows of a label -> the label; None where that is the same for two, which were cut.
        self._shown = {}
        for item in {hitter.item for report in reports for hitter in report.heavy_hitters}:
            text = shown_text(item)
            self._shown[text] = None if text in self._shown else item
        self._kinds = {hitter.kind for report in reports for hitter in report.heavy_hitters}
        self._name_sizes()
        whole = page.encode()
        self.view = View(epoch, whole, packed(whole), number, first, messages, self._summary(), self._badge())

    def _page(self, reports: Sequence[WindowReport], after: str) -> tuple[str, ReportColumns]:
        """The page, and what it shows. Raises UserError for more than a page can hold.

        after: what the page says to hear of all that came later.
        """
        columns = report_columns(reports, self._plan, self._titles)
        style, *scripts = served_files()
        text = summary(self._header, self._plan, extent_of(columns), self._zone, self._state())
        live = {"after": after, "goes_on": self._goes_on and self._ended is None}
        parts = {
            **page_parts(self._header, reports, self._plan, columns, self._title),
            "summary": escaped(text),
            "live": f"{_LIVE}\n{_OPERATOR}\n" if self._for_operator else f"{_LIVE}\n",
            "made": _MADE,
            "data": data_block({**page_data(self._header, columns, self._zone), "live": live}),
        }
        page = served_document("page.html", style, scripts, parts)
        check_size(page)
        return page, columns

    def _summary(self) -> str:
        return summary(self._header, self._plan, self._extent, self._zone, self._state())

    def _state(self) -> str:
        return "" if self._ended is None else ended_words(self._ended, self._horizon)

    @property
    def _horizon(self) -> int | None:
        return None if self._plan is None else self._plan.schedule.horizon

    def _badge(self) -> str:
        if self._ended is not None:
            is_all = self._horizon is None or self._ended.windows >= self._horizon
            return f"{'The run' if is_all else 'This part'} has ended. No further window will come."
        return "" if self._goes_on else "A report file. The page loads anew when another one takes its place."
