"""``shh load REPORT``: copies a report into a table of a database."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from dp_transforms.cli.options import user_errors
from dp_transforms.cli.show import read_report_and_end
from dp_transforms.cli.table_output import OUTPUT_TABLE, check_table, output_table, show_command
from dp_transforms.errors import StreamError, UserError
from dp_transforms.reports import ReportFileError


@click.command(name="load")
@click.argument("report", type=click.Path(path_type=str))
@click.option(
    "--output",
    required=True,
    metavar="URL",
    help="The database, as postgresql://USER@HOST/DATABASE or sqlite:///FILE.",
)
@OUTPUT_TABLE
def command(report: str, **options: Any) -> None:
    """Copy a report into a table of a database, for SQL and dashboards.

    REPORT is a file of `shh replay` (Avro, JSON lines or Parquet) or a folder of `shh stream`. What the table has
    already stays: the same report can be copied again, and the parts of a run one after the other. If it has another
    answer for a window, nothing is copied.

    \b
    shh load reports/2026-12-01.avro --output sqlite:///reports.db
    """
    table = output_table(options)
    if table is None:
        raise UserError("--output must be a database: postgresql://USER@HOST/DATABASE or sqlite:///FILE.")
    check_table(table)
    with user_errors(ReportFileError, StreamError):
        header, reports, ended = read_report_and_end([report])
        copied = list(reports)
        with contextlib.closing(table.open(header)) as writer:
            for window in copied:
                writer.write(window)
            if ended is not None:
                writer.end(ended)
            writer.commit()
    windows = "1 window" if len(copied) == 1 else f"{len(copied):,} windows"
    click.echo(f"{windows} with heavy items copied; see all with: {show_command(table, header.run_id)}")
