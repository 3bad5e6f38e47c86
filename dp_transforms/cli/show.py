"""``shh show REPORT``: prints a report (a file, or the folder of a stream) as a table, a page or JSON."""

from __future__ import annotations

import datetime
import os
import pathlib
from collections.abc import Mapping, Sequence

import click
from rich.console import Console
from rich.text import Text

from dp_transforms.checks import time_zone
from dp_transforms.cli.options import (
    TITLES,
    Command,
    Options,
    check_page,
    check_together,
    option,
    read_titles,
)
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import (
    TABLE_FORMATS,
    Report,
    encode_trend,
    flat_table,
    read_report,
    write_flat,
)
from dp_transforms.reports.report import folder_of_stream
from dp_transforms.reports.trends import Trend, trends
from dp_transforms.stores.files import check_output, write_output
from dp_transforms.views.report_words import ended_words, escape_text, is_ascii_only, label_text, legend, windows_table

_LATEST_WINDOWS = 24
_ITEMS_PER_WINDOW = 8
_NO_END_IN_PARTS = "These files are parts of a run, and do not say whether it has ended."
_LAST = (
    "Show the latest N windows with heavy items, and all their items. "
    f"Default: {_LATEST_WINDOWS} and the largest {_ITEMS_PER_WINDOW} of each; all in a page, a table or JSON."
)
_TABLE = "Write a table instead, with a row for each item of a window, as .csv or .parquet."
_ZONE = "Time zone of tables and pages, such as Europe/Berlin. JSON stays in UTC. Default: UTC."


@click.command(
    "show",
    cls=Command,
    params=[
        click.Argument(["reports"], nargs=-1, required=True, metavar="REPORT..."),
        option(["--last"], type=click.IntRange(min=1), metavar="N", help=_LAST),
        option(["--json", "as_json"], is_flag=True, help="Print JSON lines, one per window."),
        option(["--html"], metavar="FILE.html", help="Write a page for the browser instead, that loads nothing."),
        option(["--output"], metavar="FILE.csv", help=_TABLE),
        TITLES,
        option(["--time-zone"], metavar="ZONE", help=_ZONE),
    ],
)
def command(options: Options) -> None:
    """Print a report: its guarantee, and which items were heavy in which window, of the latest windows.

    REPORT is a file of `shh replay` (Avro or JSON lines), several files of one run or a folder of them,
    or a folder of `shh stream`.
    """
    check_together(options, "titles", excludes="as_json", why="lines for programs have labels")
    zone, output = time_zone(options.time_zone or "UTC"), options.output
    check_page(options.html)
    if output is not None and not output.lower().endswith(TABLE_FORMATS):
        raise click.UsageError(f"--output must end in {' or '.join(TABLE_FORMATS)}, got {output!r}.")
    check_output(output)
    report = read_report(*options.reports)
    header, plan, state = report.header, report.header.checked_plan(), end_in_words(options.reports, report)
    all_found, titles = list(trends(plan, report)), read_titles(options.titles)
    found = all_found[-options.last :] if options.last else all_found
    if options.html is not None:
        from dp_transforms.views.page.report_page import report_page

        write_output(options.html, report_page(header, [each.report for each in found], zone, titles, state))
        click.echo(f"Page written to {options.html}.", err=options.as_json)
    if output is not None:
        table, kind = flat_table(header, found), pathlib.Path(output).suffix.lower()
        write_output(output, lambda file: write_flat(file, table, kind))
        click.echo(f"Table written to {output}.", err=options.as_json)
    if options.as_json:
        for each in found:
            click.echo(encode_trend(each))
    elif options.html is None and output is None:
        console = Console(markup=False, highlight=False, emoji=False)
        shown, items = (found, None) if options.last else (found[-_LATEST_WINDOWS:], _ITEMS_PER_WINDOW)
        ascii_only = is_ascii_only(console)
        stream, run = (label_text(name, ascii_only) for name in (header.stream, header.run_id))
        console.print(Text(escape_text(header.guarantee, ascii_only), style="bold"))
        console.print(Text(f"Stream {stream}, run {run}.", style="dim"))
        if shown:
            print_windows(console, plan, shown, zone, titles, max_items=items)
        else:
            console.print(Text("No window reports any item. Some users may have held some, but too few."))
        if len(shown) < len(all_found):
            of_all = f"of {len(all_found)} windows with heavy items; --last {len(all_found)} shows all."
            console.print(Text(f"The latest {len(shown)} {of_all}", style="dim"))
        if state:
            click.echo(state)


def end_in_words(paths: Sequence[str], report: Report) -> str:
    """For all but one file whether the run has ended."""
    if folder_of_stream(paths[0]) is None:
        return _NO_END_IN_PARTS if len(paths) > 1 or os.path.isdir(paths[0]) else ""
    if report.ended is None:
        return "The run goes on: further windows may follow."
    plan = report.header.checked_plan()
    return ended_words(report.ended, plan.schedule.horizon if plan else None)


def print_windows(
    console: Console,
    plan: Plan | None,
    shown: Sequence[Trend],
    zone: datetime.tzinfo,
    titles: Mapping[str, str],
    *,
    max_items: int | None,
) -> None:
    """A table of windows, and what its signs mean."""
    ascii_only = is_ascii_only(console)
    console.print(windows_table(shown, max_items=max_items, ascii_only=ascii_only, zone=zone, titles=titles))
    console.print(Text(legend(shown, plan, ascii_only=ascii_only), style="dim"))
