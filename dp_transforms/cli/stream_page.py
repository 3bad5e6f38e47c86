"""``shh stream --html``: the page of a run so far, written anew as windows close.

A page takes the place of the one before whole or not at all. The newest windows are on it, and how many came before
them: a page after ten thousand windows costs as much as one after two hundred. ``shh show --html`` makes one of all.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence

from dp_transforms.cli.output_file import write_output
from dp_transforms.cli.shared_options import ViewOptions
from dp_transforms.errors import UserError
from dp_transforms.monitor.window_report import RunEnded, WindowReport
from dp_transforms.reports import ReportHeader
from dp_transforms.views.page.report_columns import plan_of
from dp_transforms.views.page.report_page import report_page
from dp_transforms.views.report_words import counted, ended_words

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
