"""``shh load REPORT``: copies a report into a table of a database."""

from __future__ import annotations

import contextlib
import dataclasses

import click

from dp_transforms.cli.operator_log import note_done
from dp_transforms.cli.options import argument, filled_by, opt, user_errors
from dp_transforms.cli.show import read_report_and_end
from dp_transforms.cli.table_output import check_has_no_facets, output_table, output_table_option
from dp_transforms.errors import StreamError, UserError
from dp_transforms.reports import ReportFileError


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
    table = output_table(options.output, options.output_table)
    if table is None:
        raise UserError("--output must be a database: postgresql://USER@HOST/DATABASE or sqlite:///FILE.")
    with user_errors(ReportFileError, StreamError):
        header, reports, ended = read_report_and_end([options.report])
        check_has_no_facets(header.extra is not None)
        copied = list(reports)
        with contextlib.closing(table.open(header)) as writer:
            for window in copied:
                writer.write(window)
            if ended is not None:
                writer.end(ended)
            writer.commit()
    note_done()
    windows = "1 window" if len(copied) == 1 else f"{len(copied):,} windows"
    click.echo(f"{windows} with heavy items copied; see all with: {table.show_command(header.run_id)}")
