"""``shh load REPORT``: copies a report into a table of a database."""

from __future__ import annotations

import contextlib
import dataclasses

import click

from dp_transforms.cli.operator_log import note_done
from dp_transforms.cli.options import argument, filled_by, opt, user_errors
from dp_transforms.cli.shared_options import in_flags_of_table, output_table_option
from dp_transforms.cli.show import read_report_and_end
from dp_transforms.errors import StreamError, UserError
from dp_transforms.reports import ReportFileError, ReportTable
from dp_transforms.stores.databases import DEFAULT_TABLE, is_database
from dp_transforms.views.report_words import counted


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """The command line of ``shh load``."""

    report: str = argument("REPORT", nargs=1)
    output: str = opt(
        "", "The database, as postgresql://USER@HOST/DATABASE or sqlite:///FILE.", required=True, metavar="URL"
    )
    output_table: str | None = output_table_option()


@filled_by(LoadOptions, "load")
def command(options: LoadOptions) -> None:
    """Copy a report into a table of a database, for SQL and dashboards.

    REPORT is a file of `shh replay` (Avro, JSON lines or Parquet) or a folder of `shh stream`. What the table has
    already stays: the same report can be copied again, and the parts of a run one after the other. If it has another
    answer for a window, nothing is copied.

    \b
    shh load reports/2026-12-01.avro --output sqlite:///reports.db
    """
    table = _table(options)
    with user_errors(ReportFileError, StreamError):
        header, reports, ended = read_report_and_end([options.report])
        copied = list(reports)
        with contextlib.closing(table.open(header)) as writer:
            for window in copied:
                writer.write(window)
            if ended is not None:
                writer.end(ended)
            writer.commit()
    note_done()
    windows = counted(len(copied), "window")
    click.echo(f"{windows} with heavy items copied; see all with: {table.show_command(header.run_id)}")


def _table(options: LoadOptions) -> ReportTable:
    """Raises UserError if it cannot be written from here."""
    if not is_database(options.output):
        raise UserError("--output must be a database: postgresql://USER@HOST/DATABASE or sqlite:///FILE.")
    try:
        table = ReportTable(options.output, options.output_table or DEFAULT_TABLE).with_absolute_path()
    except ValueError as error:
        raise UserError(in_flags_of_table(str(error))) from None
    with user_errors(ValueError, prefix="--output "):
        table.check_can_be_written(is_local=True)
    return table
