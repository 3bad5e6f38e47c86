"""The end of a stream: a folder that keeps the first answer, under bundles that run twice."""

from __future__ import annotations

import apache_beam as beam
import pytest

from dp_transforms.beam.write_reports import WriteReportStream
from dp_transforms.core.window_report import ABOVE, HeavyHitter, WindowReport
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.reports.report_records import RunEnded
from tests.helpers.beam_pipelines import Collected, local_pipeline
from tests.helpers.report_samples import files_of

HOUR = 3_600_000_000
HEADER = ReportHeader("run-1", "news", "Each user's log is protected with ε = 2.", {"epsilon": 2.0})
REPEATED = ["--direct_runner_bundle_repeat=1"]
ENDED = RunEnded("news", 40, 40)


def report(window, label="Ünïcode ☃", stream="news"):
    hitters = [HeavyHitter(label, ABOVE, None)]
    return WindowReport(stream, window * HOUR, (window + 1) * HOUR, hitters, 2.0, 1e-9, 0.01 * window)


REPORTS = [report(window) for window in range(0, 40, 3)]
KEYS = [f"news|1970-01-{1 + window // 24:02d}T{window % 24:02d}:00:00Z" for window in range(0, 40, 3)]


def write(sink, reports=REPORTS, ended=(ENDED,), flags=(), header=HEADER, timestamps=False):
    """Runs a pipeline that writes the reports, in several bundles; returns the keys."""
    keys = Collected()
    with local_pipeline(flags) as job:
        found = job | "Reports" >> beam.Create(reports).with_output_types(WindowReport)
        if timestamps:
            found |= "Stamp" >> beam.Map(lambda row: beam.window.TimestampedValue(row, row.window_end // 1_000_000))
            found |= "Windows" >> beam.WindowInto(beam.window.FixedWindows(3600))
        end = job | "Ended" >> beam.Create(list(ended)).with_output_types(RunEnded)
        written = (found, end) | "Write" >> WriteReportStream(sink, header)
        _ = written | "Keys" >> keys.sink()
    return keys.values


@pytest.fixture
def sink(tmp_path):
    return ReportFolder(str(tmp_path / "reports"))


def test_a_stream_of_reports_is_written_once_and_ended(sink):
    assert set(write(sink, flags=REPEATED)) == {*KEYS, "news|end"}
    assert sink.read("run-1") == (HEADER, REPORTS, ENDED)
    before = files_of(sink.path)
    write(sink, REPORTS[::-1], flags=REPEATED)
    assert files_of(sink.path) == before


def test_a_sink_is_opened_when_the_pipeline_begins(sink):
    """A first window may take a day."""
    write(sink, [], ended=())
    assert sink.read("run-1") == (HEADER, [], None)
    with pytest.raises(Exception, match="belongs to another run"):
        write(sink, [], ended=(), header=ReportHeader("run-2", "news", HEADER.guarantee, HEADER.plan))


def test_a_second_answer_or_another_run_fails_the_job_and_is_written_nowhere(sink):
    write(sink, ended=())
    before = files_of(sink.path)
    with pytest.raises(Exception, match="already has another answer") as caught:
        write(sink, [report(0, "secret label")])
    assert "secret label" not in str(caught.value)
    with pytest.raises(Exception, match="belongs to another run"):
        write(sink, header=ReportHeader("run-2", "news", HEADER.guarantee, HEADER.plan))
    assert files_of(sink.path) == before
