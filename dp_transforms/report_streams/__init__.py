"""Where a run that goes on puts its reports: `ReportFolder`, one file per window, or `ReportTopic`, a topic of Kafka.

The first answer for a window of a run is kept for ever. Given again, as after the death of a worker, it changes
nothing; another answer for the same window would be a second release that nobody accounted for: it raises StreamError
and is written nowhere (docs/guarantee.md, section 6).

    `report_writer`       what a sink and its writer are
    `report_folder`       files that appear whole, and are never replaced
    `topic_records`       a report as one record, JSON or Avro
    `report_topic`        transactions, so that a worker that was given up can write no more

Knows no Beam.
"""

from dp_transforms.report_streams.report_folder import ReportFolder, read_report_folder
from dp_transforms.report_streams.report_topic import ReportTopic
from dp_transforms.report_streams.report_writer import ReportSink, ReportWriter

__all__ = ["ReportFolder", "ReportSink", "ReportTopic", "ReportWriter", "read_report_folder"]
