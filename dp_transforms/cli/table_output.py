"""``--output`` as a table of a database: ``--output postgresql://HOST/DATABASE --output-table NAME``."""

from __future__ import annotations

import os

from dp_transforms.cli.operator_log import note_done
from dp_transforms.cli.options import OUTPUT, Rule, opt, user_errors
from dp_transforms.errors import StreamError, UserError
from dp_transforms.monitor.window_report import RunEnded
from dp_transforms.reports import read_report_file
from dp_transforms.reports.report_table import DEFAULT_TABLE, ReportTable
from dp_transforms.stores.databases import is_database


def seen_as_output(output: str | None) -> str:
    """What rules take ``--output`` for."""
    return "DATABASE" if output is not None and is_database(output) else "FILE"


def output_table_option() -> str | None:
    """The field of a command that may write to a database."""
    made: str | None = opt(
        OUTPUT,
        f"The table of a database in --output, which is made if it is missing. Default: {DEFAULT_TABLE}.",
        metavar="NAME",
    )
    return made


TABLE_RULES = (
    Rule(
        "--output-table",
        needs="--output DATABASE",
        remedy="Leave it out, or write to a database, such as --output sqlite:///reports.db.",
    ),
)


def output_table(output: str | None, table: str | None) -> ReportTable | None:
    """The table of --output and --output-table; None for an output that is not of a database. Raises UserError."""
    if output is None or not is_database(output):
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
    note_done()


def check_table_of_replay(sink: ReportTable, run_id: str) -> None:
    """Before the work: that the database can be reached, and has no run of this id. Raises UserError."""
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
