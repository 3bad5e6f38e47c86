"""``--output`` as a table of a database: ``--output postgresql://HOST/DATABASE --output-table NAME``."""

from __future__ import annotations

from dp_transforms.cli.operator_log import note_done
from dp_transforms.cli.options import OUTPUT, Rule, opt, user_errors
from dp_transforms.errors import StreamError, UserError
from dp_transforms.monitor.window_report import RunEnded
from dp_transforms.reports import read_report_file
from dp_transforms.reports.report_table import DEFAULT_TABLE, ReportTable
from dp_transforms.stores.databases import is_database
from dp_transforms.stores.kafka_client import is_topic

PATH = "PATH"  # what a place is that is neither a topic nor a database


def seen_as_place(place: str | None) -> str:
    """What rules take ``--input`` and ``--output`` for."""
    if place is None:
        return ""
    return "TOPIC" if is_topic(place) else "DATABASE" if is_database(place) else PATH


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
    """The table of --output and --output-table; None for an output that is not of a database. Raises UserError also if
    it cannot be written from here."""
    if output is None or not is_database(output):
        return None
    try:
        sink = ReportTable(output, table or DEFAULT_TABLE).with_absolute_path()
    except ValueError as error:
        raise UserError(in_flags_of_table(str(error))) from None
    with user_errors(ValueError, prefix="--output "):
        sink.check_can_be_written(is_local=True)
    return sink


def check_has_no_facets(has_facets: bool) -> None:
    """Before anything is written to a database. Raises UserError."""
    if has_facets:
        raise UserError(
            "--output DATABASE cannot be used with --by or --weight: its tables have no place for them. Write a file."
        )


def publish_to_table(draft: str, sink: ReportTable, windows: int) -> None:
    """Copies the report of a whole run, and its end, in one transaction. windows: of its plan. Raises UserError."""
    header, read = read_report_file(draft)
    reports = list(read)
    with user_errors(StreamError):
        sink.write_whole(header, reports, RunEnded(header.stream, windows, len(reports)))
    note_done()


def check_has_no_run(sink: ReportTable, run_id: str) -> None:
    """Before the work of a replay: that the database can be reached, and has no run of this id. Raises UserError."""
    try:
        header, _, _ = sink.read(run_id)
    except StreamError as error:
        raise UserError(f"{error} Nothing was started.") from None
    if header is not None:
        raise UserError(f"--output-table has a run {run_id!r} already. Give another --run-id, or leave it out.")


def in_flags_of_table(message: str) -> str:
    words = {"url of a report table": "--output", "table must be a name": "--output-table must be a name"}
    for word, in_flags in words.items():
        message = message.replace(word, in_flags)
    return message
