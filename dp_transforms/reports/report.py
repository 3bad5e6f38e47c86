"""A report as one value, for programs and notebooks: windows one by one, or one flat table for any library that takes
Arrow."""

from __future__ import annotations

import dataclasses
import html
import os
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any

from dp_transforms.checks import on_one_line
from dp_transforms.core.window_report import WindowReport
from dp_transforms.errors import StreamError
from dp_transforms.plan.window_schedule import format_utc
from dp_transforms.reports.files import is_report_file, read_report_file, write_report_file
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.reports.report_records import HEADER_KEY, ReportFileError, ReportHeader, RunEnded, in_file_order
from dp_transforms.reports.trends import Trend, trends
from dp_transforms.stores.remote_files import UrlError

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_FORMATS = (".csv", ".parquet")
_SHOWN_ITEMS, _SHOWN_LETTERS = 10, 80
_HEADS = ("rank", "item", "users", "change")
_SIZES = ("at_least_users", "noisy_count", "level")
# A spreadsheet takes a cell that begins so for a formula, and may run it.
_FORMULA = "^[=+\\-@\t\r＝＋－＠]"


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """A report of `replay`, or of a file or folder by `read_report`. All of it may be published.

    header: the run, its plan and what it guarantees. windows: those with heavy items, by time; also had by iterating.
    ended: the end of the run of a stream; None while it goes on, and of files.
    Whatever takes Arrow takes it as a table (`to_arrow`): ``polars.DataFrame(report)``, ``duckdb.from_arrow(report)``.
    """

    header: ReportHeader
    windows: tuple[WindowReport, ...]
    ended: RunEnded | None = None

    def __iter__(self) -> Iterator[WindowReport]:
        return iter(self.windows)

    def __len__(self) -> int:
        """The number of windows with heavy items."""
        return len(self.windows)

    def to_arrow(self) -> pa.Table:
        """A row for each item of a window, by time, and then from the largest: the times of the window, the item, its
        rank and change (`trends`), and the other fields of `HeavyHitter`. The metadata of the schema have the
        header."""
        return flat_table(self.header, trends(self.header.checked_plan(), self.windows))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def write(self, path: str | os.PathLike[str]) -> None:
        """A report file, as `shh replay` writes it: .avro or .jsonl. One that exists is never overwritten.
        Raises UserError."""
        write_report_file(path, self.header, self.windows)

    def __repr__(self) -> str:
        items = sum(len(window.heavy_hitters) for window in self.windows)
        return f"<Report: {items:,} items in {len(self):,} windows. {self.header.guarantee}>"

    def _repr_html_(self) -> str:
        """For notebooks: the largest items of the latest window, and the promise."""
        promise = f"<p>{html.escape(self.header.guarantee)}</p>"
        if not self.windows:
            return f"<p>No window reports any item.</p>{promise}"
        *_, trend = trends(self.header.checked_plan(), self.windows[-2:])
        rows = [
            (str(rank), on_one_line(found.item, _SHOWN_LETTERS), found.size_in_words or "not stated", change or "")
            for found, rank, change in trend.entries[:_SHOWN_ITEMS]
        ]
        times = f"{format_utc(trend.report.window_start)} to {format_utc(trend.report.window_end)}"
        caption = f"{times}, the latest of {len(self):,} windows with heavy items; it has {len(trend.entries):,}"
        lines = [f"<table><caption>{html.escape(caption)}</caption>", _html_row("th", _HEADS)]
        return "".join([*lines, *(_html_row("td", row) for row in rows), "</table>", promise])


def _html_row(tag: str, cells: Iterable[str]) -> str:
    """Whatever a cell contains is shown as text. bdi: what runs from right to left does not turn its neighbours."""
    return "<tr>" + "".join(f"<{tag}><bdi>{html.escape(cell)}</bdi></{tag}>" for cell in cells) + "</tr>"


def read_report(*paths: str | os.PathLike[str]) -> Report:
    """The report of `shh replay` in a file, in several files that are parts of one run, or in a folder of them; or the
    windows that a stream has written so far into its folder.

    Raises ReportFileError for what is not a report or cannot be read, for files of several runs, and for a window that
    two files have.
    """
    streams = [folder for path in paths if (folder := folder_of_stream(path)) is not None]
    if len(paths) > 1 and streams:
        raise ReportFileError(f"{streams[0].name} has the report of a stream. Read it by itself.")
    if streams:
        try:
            header, windows, ended = streams[0].read()
        except StreamError as error:
            raise ReportFileError(str(error)) from error
        assert header is not None, "a folder that is begun has one"
        return Report(header, tuple(windows), ended)
    files = [file for path in paths for file in (_files_in(path) if os.path.isdir(path) else [os.fspath(path)])]
    if not files:
        names = ", ".join(repr(os.fspath(path)) for path in paths)
        raise ReportFileError(f"there is no report in {names}. Check the path.")
    header, windows, owners = None, list[WindowReport](), dict[tuple[str, int, int], str]()
    for path in files:
        of_part, more = read_report_file(path)
        header = header or of_part
        if problem := header.unlike(of_part):
            raise ReportFileError(f"{files[0]!r} and {path!r} are not of one run: {problem}. Show them one by one.")
        for report in more:
            if first := owners.get(report[:3]):
                raise ReportFileError(
                    f"{first!r} and {path!r} both have the window that begins at {format_utc(report.window_start)}."
                    " Name each part of a run once."
                )
        owners |= {report[:3]: path for report in more}
        windows += more
    assert header is not None, "there is a file"
    return Report(header, tuple(in_file_order(windows)))


def folder_of_stream(path: str | os.PathLike[str]) -> ReportFolder | None:
    """None for anything else. A store is not asked about the name of a file. Raises ReportFileError."""
    path = os.fspath(path)
    if "://" in path and is_report_file(path):
        return None
    try:
        folder = ReportFolder(path)
        return folder if folder.is_begun else None
    except UrlError as error:
        raise ReportFileError(str(error)) from None
    except OSError as error:
        raise ReportFileError(f"cannot read {path!r}: {error.strerror}.") from None


def _files_in(folder: str | os.PathLike[str]) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if is_report_file(name)]
    except OSError as error:
        raise ReportFileError(f"cannot read {os.fspath(folder)!r}: {error.strerror}. Check the path.") from error


def flat_table(header: ReportHeader, windows: Iterable[Trend]) -> pa.Table:
    """See `Report.to_arrow`. A size that is not stated is null, also where a report has 0."""
    import pyarrow as pa

    time, text, whole = pa.timestamp("us", "UTC"), pa.string(), pa.int64()
    types = {"window_start": time, "window_end": time, "rank": whole, "item": text, "change": text, "zone": text}
    types |= dict.fromkeys(_SIZES, whole)
    rows: list[tuple[Any, ...]] = []
    for trend in windows:
        for found, rank, change in trend.entries:
            sizes = found.at_least_users or None, found.noisy_count, found.level
            rows.append((*trend.report[1:3], rank, found.item, change, found.zone, *sizes))
    columns = zip(*rows, strict=True) if rows else [()] * len(types)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types.values(), strict=True)]
    return pa.table(arrays, pa.schema(types.items(), {HEADER_KEY: header.to_json()}))


def write_flat(handle: IO[bytes], table: pa.Table, kind: str) -> None:
    """Writes a table of `flat_table`. kind: of `TABLE_FORMATS`. Times are text in UTC, but in Parquet. In CSV an item
    that a spreadsheet would take for a formula begins with an apostrophe."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind == ".parquet":
        import pyarrow.parquet as pq

        pq.write_table(table, handle)
        return
    for at, name in enumerate(("window_start", "window_end")):
        moments = pc.strftime(table.column(name).cast(pa.timestamp("s", "UTC")), format="%Y-%m-%dT%H:%M:%SZ")
        table = table.set_column(at, name, moments)
    import pyarrow.csv

    at = table.schema.get_field_index("item")
    item = table.column(at)
    safe = pc.if_else(pc.match_substring_regex(item, _FORMULA), pc.binary_join_element_wise("'", item, ""), item)
    pyarrow.csv.write_csv(table.set_column(at, "item", safe), handle)
