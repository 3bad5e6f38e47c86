"""A report file as one value: what it says about the run, and its windows."""

from __future__ import annotations

import dataclasses
import os

from dp_transforms.html_tables import html_table
from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.plan.window_schedule import format_utc
from dp_transforms.reports.files import read_report_file
from dp_transforms.reports.records import ReportHeader

_SHOWN_WINDOWS, _SHOWN_ITEMS = 24, 8


@dataclasses.dataclass(frozen=True)
class Report:
    """A report, read by `read_report`. header: the plan and what it guarantees. windows: those with heavy items, by
    time. A notebook shows the latest of them."""

    header: ReportHeader
    windows: tuple[WindowReport, ...]

    def _repr_html_(self) -> str:
        rows = [
            (format_utc(window.window_start), format_utc(window.window_end), *_items(window))
            for window in self.windows[-_SHOWN_WINDOWS:]
        ]
        count = len(self.windows)
        which = f"The last {_SHOWN_WINDOWS} of {count:,}" if count > _SHOWN_WINDOWS else f"{count:,}"
        caption = f"{which} windows with heavy items. {self.header.guarantee}"
        return html_table(caption, ("start (UTC)", "end", "largest items", "further items"), rows)


def read_report(path: str | os.PathLike[str]) -> Report:
    """The report of `shh replay` in a file. Raises ReportFileError for a file that is not a report, OSError for one
    that cannot be read."""
    header, windows = read_report_file(path)
    return Report(header, tuple(windows))


def _items(window: WindowReport) -> tuple[tuple[str, ...], int]:
    first = window.heavy_hitters[:_SHOWN_ITEMS]
    return tuple(each.in_words for each in first), len(window.heavy_hitters) - len(first)
