"""Sinks for the reports of a stream: `ReportFolder`, one file per window, `ReportTopic`, a Kafka topic, or
`ReportTable`, a table of a database.

The first answer for a window of a run is kept forever. The same answer again, as after the death of a worker, changes
nothing. Another answer for the same window would be a second release that is not accounted for: it raises StreamError
and is not written (docs/guarantee.md, section 6).

    `report_writer`       what a sink and its writer are
    `window_follower`     reads each window of a folder or a table once, as they come
    `report_folder`       files that appear whole, and are never replaced
    `topic_records`       a report as one record, JSON or Avro
    `topic_run`           what a topic holds of a run
    `report_topic`        transactions, so that a worker that was replaced can write no more
    `topic_follower`      a topic read as it grows, for who shows a run
    `report_table`        a key for each window, in PostgreSQL or SQLite
    `table_schema`        its tables and their view
    `table_rows`          the statements on them
    `table_store`         how a run is written and read

Knows no Beam.
"""

from dp_transforms.report_streams.report_folder import ReportFolder, read_report_folder
from dp_transforms.report_streams.report_table import ReportTable, read_report_table
from dp_transforms.report_streams.report_topic import ReportTopic
from dp_transforms.report_streams.report_writer import ReportSink, ReportWriter

__all__ = [
    "ReportFolder",
    "ReportSink",
    "ReportTable",
    "ReportTopic",
    "ReportWriter",
    "read_report_folder",
    "read_report_table",
]
