"""``--output`` as a table of a database: ``--output postgresql://HOST/DATABASE --output-table NAME``."""

from __future__ import annotations

import os
from typing import Any

from dp_transforms.cli.options import OUTPUT, option, user_errors
from dp_transforms.errors import StreamError, UserError
from dp_transforms.monitor.window_report import RunEnded
from dp_transforms.reports import read_report_file
from dp_transforms.reports.report_table import DEFAULT_TABLE, ReportTable
from dp_transforms.stores.databases import is_database

OUTPUT_TABLE = option(
    OUTPUT,
    "--output-table",
    metavar="NAME",
    help=f"The table of a database in --output, which is made if it is missing. Default: {DEFAULT_TABLE}.",
)


def output_table(options: dict[str, Any]) -> ReportTable | None:
    """The table of --output; None for an output that is not of a database. Raises UserError."""
    output, table = options["output"], options["output_table"]
    if output is None or not is_database(output):
        if table is not None:
            raise UserError(
                "--output-table belongs to a database in --output, such as --output sqlite:///reports.db. Leave it out."
            )
        return None
    try:
        return ReportTable(output, table or DEFAULT_TABLE).with_absolute_path()
    except ValueError as error:
        raise UserError(_in_flags(str(error))) from None


def check_table(sink: ReportTable) -> None:
    """Raises UserError if the folder of the database cannot be written."""
    if sink.file is None:
        return
    folder = os.path.dirname(os.path.abspath(sink.file))
    if not os.path.isdir(folder):
        raise UserError(f"--output {sink.url}: the folder {folder} does not exist. Create it, or name another one.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"--output {sink.url} cannot be written: Permission denied. Name another folder.")


def check_table_for_workers(sink: ReportTable, *, is_local: bool) -> None:
    """is_local: whether all workers run on this machine. Raises UserError for what others could not use, or see."""
    if is_local:
        return
    if sink.file is not None:
        raise UserError(
            f"--output {sink.url} is a file, and the locks of a database need a disk that no other machine has. Give"
            " --output postgresql://HOST/DATABASE, or a folder."
        )
    if sink.has_password:
        raise UserError(
            "--output must not hold a password where a cluster runs the job, which shows it. Put it into a file that"
            " every worker has: postgresql://USER@HOST/DATABASE?passfile=/run/secrets/pgpass"
        )


def shown_output(sink: ReportTable) -> str:
    """What names the table in a state or in words for a person, without a password."""
    return f"table {sink.place.removeprefix('the table ')}"


def show_command(sink: ReportTable, run_id: str) -> str:
    """The command that shows a run of the table. A password is left out."""
    place = sink.place.rpartition(" of ")[2].strip("'\"")
    return f"shh show {place} --table {sink.table} --run-id {run_id}"


def publish_to_table(draft: str, sink: ReportTable, windows: int) -> None:
    """Copies the report of a whole run, and its end, in one transaction. windows: of its plan. Raises UserError."""
    header, read = read_report_file(draft)
    reports = list(read)
    with user_errors(StreamError):
        sink.write_whole(header, reports, RunEnded(header.stream, windows, len(reports)))


def check_table_of_replay(sink: ReportTable, run_id: str, *, has_state: bool) -> None:
    """Before the work: that the database can be reached, and has no run of this id. Raises UserError."""
    if has_state:
        raise UserError(
            "--output as a database cannot be used with --state: a part must find its report again as a file. Write a"
            " file, and copy it: shh load REPORT --output URL."
        )
    check_table(sink)
    try:
        header, _, _ = sink.read(run_id)
    except StreamError as error:
        raise UserError(f"{error} Nothing was started.") from None
    if header is not None:
        raise UserError(f"--output-table has a run {run_id!r} already. Give another --run-id, or leave it out.")


def _in_flags(message: str) -> str:
    words = {"url of a report table": "--output", "table must be a name": "--output-table must be a name"}
    for word, in_flags in words.items():
        message = message.replace(word, in_flags)
    return message
