"""``shh show REPORT``: prints a report (a file, or the folder of a stream) as a table, a chart or JSON."""

from __future__ import annotations

import datetime
import heapq
import os
from collections.abc import Iterator

import click
from rich.console import Console
from rich.text import Text

from dp_transforms.monitoring.window_report import RunEnded, WindowReport
from dp_transforms.pipelines.options import TIME_ZONE_OPTION, TITLES_OPTION, NothingFoundError, UserError
from dp_transforms.pipelines.output_file import check_output
from dp_transforms.pipelines.report_table import escape_text, is_ascii_only, label_text, legend, windows_table
from dp_transforms.pipelines.run_words import ended_words
from dp_transforms.report_files import ReportFileError, ReportHeader, encode_report, read_report_file
from dp_transforms.sql_urls import is_database

_LATEST_WINDOWS = 24
_ITEMS_PER_WINDOW = 20
_NO_END_IN_TABLE = (
    "The table does not have the end of the run: further windows may follow, unless it was copied from a file, which"
    " does not say its end."
)


@click.command(name="show")
@click.argument("report", type=click.Path(path_type=str))
@click.option(
    "--last",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Show only the latest N windows with heavy items. [default: {_LATEST_WINDOWS}; with --json all]",
)
@click.option("--all", "show_all", is_flag=True, help="Show every window with all its items.")
@click.option(
    "--table", metavar="NAME", help="The table of a database, as --output-table named it. [default: shh_reports]"
)
@click.option("--run-id", metavar="RUN", help="The run of a table that has several.")
@click.option("--item", metavar="LABEL", help="Show only this item, and the windows in which it was heavy.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, one per window.")
@click.option(
    "--html",
    metavar="FILE.html",
    help="Also write a page for the browser, one file that loads nothing: all windows unless --last is given.",
)
@click.option(
    "--chart",
    metavar="FILE.svg",
    help="Also draw the items over time, as .svg, .png or .pdf: all windows unless --last is given, and the 40 items "
    "with most windows unless --all is given. Needs the extra charts.",
)
@TITLES_OPTION
@TIME_ZONE_OPTION
def command(
    report: str,
    last: int | None,
    show_all: bool,
    item: str | None,
    as_json: bool,
    html: str | None,
    chart: str | None,
    titles: str | None,
    zone: datetime.tzinfo,
    table: str | None,
    run_id: str | None,
) -> None:
    """Print a report: its guarantee, and which items were heavy in which window.

    REPORT is a file of `shh replay` (Avro, JSON lines or Parquet), a folder of `shh stream`, or a database that either
    wrote to (docs/databases.md).
    """
    if last is not None and show_all:
        raise click.UsageError("--last and --all exclude each other. Give one of them.")
    pictures = {"--html": html, "--chart": chart}
    is_drawn = _check_pictures(pictures, titles)
    keep = None if show_all or (as_json and last is None) else last or _LATEST_WINDOWS
    try:
        header, reports, state = read_report(report, table, run_id)
        selected, total = _latest(_only_item(reports, item), None if is_drawn and last is None else keep)
    except ReportFileError as error:
        raise UserError(str(error)) from error
    if item is not None and not total:
        raise NothingFoundError(f"no window reports {label_text(item)}. Some users may have held it, but too few.")
    if is_drawn:
        from dp_transforms.pipelines.page.show_pictures import write_pictures

        write_pictures(pictures, header, selected, zone, titles=titles, state=state, all_items=show_all)
        selected = selected if keep is None else selected[-keep:]
        for option, path in pictures.items():
            if path is not None:
                click.echo(f"{'Page' if option == '--html' else 'Chart'} written to {path}.", err=as_json)
    if as_json:
        for window in selected:
            click.echo(encode_report(window, ascii_only=True))
    else:
        _print_table(header, selected, total, _ITEMS_PER_WINDOW if not show_all else None, zone)
        if state:
            click.echo(state)


def read_report(
    path: str, table: str | None = None, run_id: str | None = None
) -> tuple[ReportHeader, Iterator[WindowReport], str]:
    """The header, the reports, and for a folder and a database whether the run has ended.

    table, run_id: of a database; None: as commands name it, and the only run.
    """
    header, reports, ended = read_report_and_end(path, table, run_id)
    if ended is not None:
        return header, reports, ended_words(ended)
    if is_database(path):
        return header, reports, _NO_END_IN_TABLE
    return header, reports, "The run goes on: further windows may follow." if os.path.isdir(path) else ""


def read_report_and_end(
    path: str, table: str | None = None, run_id: str | None = None
) -> tuple[ReportHeader, Iterator[WindowReport], RunEnded | None]:
    """The same with the end of the run; None where a run goes on, and for a file, which does not say it."""
    in_database = is_database(path)
    for option, value in {"--table": table, "--run-id": run_id}.items():
        if value is not None and not in_database:
            raise UserError(f"{option} is for a database, such as sqlite:///reports.db. Leave it out.")
    if not in_database and not os.path.isdir(path):
        return *read_report_file(path), None
    from dp_transforms.event_streams.stream_source import StreamError
    from dp_transforms.report_streams import read_report_folder, read_report_table

    try:
        header, reports, ended = read_report_table(path, table, run_id) if in_database else read_report_folder(path)
    except StreamError as error:
        raise UserError(str(error)) from error
    except ReportFileError:
        raise
    except ValueError as error:  # of the URL
        raise UserError(str(error)) from None
    return header, iter(reports), ended


def _check_pictures(pictures: dict[str, str | None], titles: str | None) -> bool:
    """Whether any is asked for. Raises before the report is read."""
    asked = {option: path for option, path in pictures.items() if path is not None}
    if titles is not None and not asked:
        raise click.UsageError("--titles is for pages and charts. Give --html or --chart as well.")
    if asked:
        from dp_transforms.pipelines.page.show_pictures import check_pictures

        check_pictures(asked)
    for option, path in asked.items():
        check_output(path, option)
    return bool(asked)


def _only_item(reports: Iterator[WindowReport], item: str | None) -> Iterator[WindowReport]:
    for report in reports:
        if item is None:
            yield report
        elif kept := [heavy_hitter for heavy_hitter in report.heavy_hitters if heavy_hitter.item == item]:
            yield report._replace(heavy_hitters=kept)


def _latest(reports: Iterator[WindowReport], keep: int | None) -> tuple[list[WindowReport], int]:
    """The latest ``keep`` windows over all streams, in time order, and how many there are."""
    total = 0

    def counted() -> Iterator[WindowReport]:
        nonlocal total
        for report in reports:
            total += 1
            yield report

    if keep is None:
        return sorted(counted(), key=_time_order), total
    latest = heapq.nlargest(keep, counted(), key=_time_order)
    return latest[::-1], total


def _time_order(report: WindowReport) -> tuple[int, str]:
    return report.window_start, report.stream


def _print_table(
    header: ReportHeader,
    reports: list[WindowReport],
    total: int,
    max_items: int | None,
    zone: datetime.tzinfo,
) -> None:
    console = Console(markup=False, highlight=False, emoji=False)
    ascii_only = is_ascii_only(console)
    console.print(Text(escape_text(header.guarantee, ascii_only), style="bold"))
    console.print(
        Text(
            f"Stream {label_text(header.stream, ascii_only)}, run {label_text(header.run_id, ascii_only)}.", style="dim"
        )
    )
    if not reports:
        console.print(Text("No window reports any item. Some users may have held some, but too few."))
        return
    console.print(windows_table(reports, max_items=max_items, ascii_only=ascii_only, zone=zone))
    console.print(Text(legend(reports, plan=header.plan, ascii_only=ascii_only), style="dim"))
    if total > len(reports):
        console.print(
            Text(f"The latest {len(reports)} of {total} windows with heavy items; --all shows every one.", style="dim")
        )
