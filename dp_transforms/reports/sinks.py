"""A sink of reports from the one word that names it: a folder, a topic, or a database."""

from __future__ import annotations

from dp_transforms.errors import StreamError
from dp_transforms.monitor.window_report import RunEnded, WindowReport
from dp_transforms.reports.report_folder import FILE_FORMATS, ReportFolder
from dp_transforms.reports.report_records import ReportHeader
from dp_transforms.reports.report_table import ReportTable
from dp_transforms.reports.report_topic import ReportTopic
from dp_transforms.reports.report_writer import ReportSink
from dp_transforms.stores.databases import DEFAULT_TABLE, is_database
from dp_transforms.stores.kafka_client import is_topic, topic_of

_ENDINGS = {record_format: ending for ending, record_format in FILE_FORMATS.items()}


def sink_of(
    place: str, *, table: str | None = None, record_format: str = "json", client_config_file: str | None = None
) -> ReportSink:
    """place: ``kafka://HOST:PORT/TOPIC``, the URL of a database, else the path of a folder. table: of a database.
    record_format: ``json`` or ``avro``; a table has columns. client_config_file: of a topic. Raises ValueError."""
    if is_topic(place):
        return ReportTopic(*topic_of(place), record_format=record_format, client_config_file=client_config_file)
    if is_database(place):
        return ReportTable(place, table or DEFAULT_TABLE).with_absolute_path()
    return ReportFolder(place, _ENDINGS[record_format])


def read_run(
    place: str, table: str | None = None, run_id: str | None = None
) -> tuple[ReportHeader, list[WindowReport], RunEnded | None]:
    """A run of a stream, the only one if no id is given. Raises StreamError, and ValueError for what names no place."""
    sink = sink_of(place, table=table)
    header, reports, ended = sink.read(run_id)
    if header is None:
        raise StreamError(f"{sink.name} has no such run of a stream. Check the place, and the run id.")
    return header, reports, ended
