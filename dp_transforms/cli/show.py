"""``shh show REPORT``: prints a report (a file, or the folder of a stream) as a table, a page or JSON."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from dp_transforms.cli.options import NothingFoundError, Rule, argument, filled_by, nested, opt, switch, user_errors
from dp_transforms.cli.output_file import check_output, write_output
from dp_transforms.cli.shared_options import PAGE_ENDINGS, ViewOptions, force_option
from dp_transforms.core.window_report import WindowReport
from dp_transforms.errors import StreamError, UserError
from dp_transforms.reports import (
    TABLE_FORMATS,
    ReportFileError,
    ReportFolder,
    ReportHeader,
    encode_trend,
    flat_table,
    read_report_file,
    read_report_files,
    read_run,
    report_files_in,
    write_flat,
)
from dp_transforms.reports.trends import Trend, trends
from dp_transforms.views.report_words import ended_words, escape_text, is_ascii_only, label_text, legend, windows_table

if TYPE_CHECKING:
    import pyarrow as pa

_LATEST_WINDOWS = 24
_ITEMS_PER_WINDOW = 8
_VIEWS = {"--html": "Page", "--output": "Table"}
_NO_END_IN_PARTS = "These files are parts of a run, and do not say whether it has ended."


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """The command line of ``shh show``."""

    reports: tuple[str, ...] = argument("REPORT...")
    last: int | None = opt(
        "",
        f"Show only the latest N windows with heavy items. [default: {_LATEST_WINDOWS}; with --json all]",
        type=click.IntRange(min=1),
        metavar="N",
    )
    show_all: bool = switch("", "Show every window with all its items.", "--all")
    item: str | None = opt("", "Show only this item, and the windows in which it was heavy.", metavar="LABEL")
    as_json: bool = switch("", "Print JSON lines, one per window.", "--json")
    html: str | None = opt(
        "",
        "Write a page for the browser instead, one file that loads nothing: all windows unless --last is given.",
        metavar="FILE.html",
    )
    output: str | None = opt(
        "",
        "Write a table instead, with a row for each item of a window, as .csv, .parquet or .jsonl: all windows unless "
        "--last is given.",
        metavar="FILE.csv",
    )
    force: bool = force_option()
    view: ViewOptions = nested(ViewOptions)

    @property
    def views(self) -> dict[str, str]:
        """The page and the table that are asked for, by their options."""
        asked = {"--html": self.html, "--output": self.output}
        return {option: path for option, path in asked.items() if path is not None}


_SHOW_RULES = (
    Rule("--last", excludes="--all", is_usage=True),
    Rule("--force", needs="--html | --output", why="it is for what can be made again", is_usage=True),
    Rule("--page-title", needs="--html", is_usage=True),
    Rule("--titles", excludes="--json", why="lines for programs have labels", is_usage=True),
)


@filled_by(ShowOptions, "show", _SHOW_RULES)
def command(options: ShowOptions) -> None:
    """Print a report: its guarantee, and which items were heavy in which window.

    REPORT is a file of `shh replay` (Avro or JSON lines), several files of one run or a folder of them,
    or a folder of `shh stream`.
    """
    views, last = options.views, options.last
    _check_views(views, force=options.force)
    keep = None if options.show_all or (last is None and (options.as_json or views)) else last or _LATEST_WINDOWS
    with user_errors(ReportFileError):
        header, windows, state = read_report(options.reports)
        found = [kept for each in trends(header.plan, windows) if (kept := _only_item(each, options.item)) is not None]
    if options.item is not None and not found:
        raise NothingFoundError(
            f"no window reports {label_text(options.item)}. Some users may have held it, but too few."
        )
    selected = found[-keep:] if keep else found
    titles = options.view.read_titles()
    if options.html is not None:
        _write_page(options.html, options, header, [each.report for each in selected], titles, state)
    if options.output is not None:
        _write_table(options.output, flat_table(header, selected), force=options.force)
    for option, path in views.items():
        click.echo(f"{_VIEWS[option]} written to {path}.", err=options.as_json)
    if options.as_json:
        for each in selected:
            click.echo(encode_trend(each))
    elif not views:
        _print_table(options, header, selected, len(found), titles)
        if state:
            click.echo(state)


def read_report(paths: Sequence[str]) -> tuple[ReportHeader, list[WindowReport], str]:
    """The header, the reports, and for all but one file whether the run has ended."""
    path = paths[0]
    if parts := _parts(paths):
        header, found = read_report_files(parts)
        return header, found, _NO_END_IN_PARTS
    if not os.path.isdir(path):
        return *read_report_file(path), ""
    with user_errors(StreamError):
        header, found, ended = read_run(path)
    if ended is None:
        return header, found, "The run goes on: further windows may follow."
    from dp_transforms.views.page.report_columns import plan_of

    plan = plan_of(header)
    return header, found, ended_words(ended, plan.schedule.horizon if plan else None)


def _parts(paths: Sequence[str]) -> Sequence[str]:
    """The files that make one report: those that are named, or all in a folder that is not of a stream. None of them
    where the report is one file or the folder of a stream."""
    if len(paths) > 1:
        if any(map(os.path.isdir, paths)):
            raise UserError("several reports must be files of one run. Name one folder, by itself.")
        return paths
    if not os.path.isdir(paths[0]):
        return ()
    return () if ReportFolder(paths[0]).is_begun else report_files_in(paths[0])


def _check_views(views: Mapping[str, str], *, force: bool) -> None:
    """Raises before the report is read."""
    if not views:
        return
    endings = {"--html": PAGE_ENDINGS, "--output": TABLE_FORMATS}
    for option, path in views.items():
        if not path.lower().endswith(endings[option]):
            raise click.UsageError(f"{option} must end in {' or '.join(endings[option])}, got {path!r}.")
    for option, path in views.items():
        check_output(path, option, force=force)


def _write_page(
    path: str,
    options: ShowOptions,
    header: ReportHeader,
    reports: Sequence[WindowReport],
    titles: Mapping[str, str],
    state: str,
) -> None:
    """state: a sentence on whether the run has ended."""
    from dp_transforms.views.page.report_page import report_page

    page = report_page(header, reports, options.view.zone, titles, state, options.view.page_title)
    write_output(path, page, force=options.force)


def _write_table(path: str, table: pa.Table, *, force: bool) -> None:
    kind = pathlib.Path(path).suffix.lower()
    write_output(path, lambda file: write_flat(file, table, kind), force=force)


def _only_item(trend: Trend, item: str | None) -> Trend | None:
    """The window with this item alone; None without it."""
    if item is None:
        return trend
    entries = [entry for entry in trend.entries if entry.hitter.item == item]
    report = trend.report._replace(heavy_hitters=[entry.hitter for entry in entries])
    return trend._replace(report=report, entries=entries, gone=[]) if entries else None


def _print_table(
    options: ShowOptions, header: ReportHeader, found: Sequence[Trend], total: int, titles: Mapping[str, str]
) -> None:
    console = Console(markup=False, highlight=False, emoji=False)
    ascii_only = is_ascii_only(console)
    run = f"Stream {label_text(header.stream, ascii_only)}, run {label_text(header.run_id, ascii_only)}."
    console.print(Text(escape_text(header.guarantee, ascii_only), style="bold"))
    console.print(Text(run, style="dim"))
    if not found:
        console.print(Text("No window reports any item. Some users may have held some, but too few."))
        return
    table = windows_table(
        found,
        max_items=None if options.show_all else _ITEMS_PER_WINDOW,
        ascii_only=ascii_only,
        zone=options.view.zone,
        plan=header.plan,
        titles=titles,
    )
    console.print(table)
    console.print(Text(legend(found, plan=header.plan, ascii_only=ascii_only), style="dim"))
    if total > len(found):
        console.print(
            Text(f"The latest {len(found)} of {total} windows with heavy items; --all shows every one.", style="dim")
        )
