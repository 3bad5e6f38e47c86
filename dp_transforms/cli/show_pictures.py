"""The options of ``shh show`` that draw: --html, --chart, --titles."""

from __future__ import annotations

import datetime
import pathlib
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import click

from dp_transforms.cli.output_file import write_output
from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.reports import ReportHeader
from dp_transforms.views.page import picture
from dp_transforms.views.page.report_columns import plan_of, read_titles, report_columns
from dp_transforms.views.page.report_page import report_page
from dp_transforms.views.report_table import escape_text, shown_text

ENDINGS = {"--html": (".html", ".htm"), "--chart": picture.FORMATS}


def check_pictures(asked: Mapping[str, str]) -> None:
    """asked: option -> path. Raises for an ending that cannot be written, and where the extra is not installed."""
    for option, path in asked.items():
        if not path.lower().endswith(ENDINGS[option]):
            raise click.UsageError(f"{option} must end in {' or '.join(ENDINGS[option])}, got {path!r}.")
    if "--chart" in asked:
        picture.check_picture_library()


def write_pictures(
    pictures: Mapping[str, str | None],
    header: ReportHeader,
    reports: Sequence[WindowReport],
    zone: datetime.tzinfo,
    *,
    titles: str | None,
    state: str,
    all_items: bool,
    force: bool,
) -> None:
    """Writes those of the two that have a path.

    force: in the place of files that are there. titles: path of the list of titles. state: a sentence on whether the
    run has ended.
    """
    named = read_titles(titles) if titles is not None else {}
    if page := pictures["--html"]:
        write_output(page, report_page(header, reports, zone, named, state), force=force)
    if chart := pictures["--chart"]:
        drawn = picture.picture(
            report_columns(reports, plan_of(header), named),
            f"Items over time: {shown_text(header.stream)}",
            escape_text(header.guarantee),
            zone,
            kind=pathlib.Path(chart).suffix.lower(),
            most_items=picture.MOST_ITEMS if all_items else picture.FEW_ITEMS,
        )
        write_output(chart, lambda file: _write(file, drawn), force=force)


def _write(file: BinaryIO, data: bytes) -> None:
    file.write(data)
