"""Files and folders that a pipeline writes, reports and rejected rows: whole, once, whatever runs twice or dies, and
with the modes that they should have."""

import json
import os
import random
import stat

import apache_beam as beam
import pytest

from dp_transforms.beam.write_reports import WriteRejected, WriteRejectedFolder, WriteReports, WriteReportStream
from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter, WindowReport
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.reports import ReportHeader, read_report, read_report_file
from dp_transforms.reports.report_records import RunEnded
from dp_transforms.stores.files import write_output
from tests.helpers.beam_pipelines import Collected, local_pipeline
from tests.helpers.small_runs import small_plan

HOUR = 3_600_000_000
HEADER = ReportHeader("run-1", "news", "Each user's log is protected with ε = 2.", {"epsilon": 2.0})
REPEATED = ["--direct_runner_bundle_repeat=1"]


def report(window, *heavy_hitters, stream="news"):
    return WindowReport(stream, window * HOUR, (window + 1) * HOUR, list(heavy_hitters), 2.0, 1e-9, 0.01 * window)


REPORTS = [
    report(2, HeavyHitter("Ünïcode ☃", ABOVE, None), HeavyHitter("b", BETWEEN, 812)),
    report(0, HeavyHitter("a", None, 4021), HeavyHitter("", None, -3)),
    report(1),
    report(1, HeavyHitter("x", ABOVE, None), stream="alpha"),
    report(3, HeavyHitter("big", None, None, (1 << 63) - 1, (1 << 63) - 1), HeavyHitter("known", None, None, 1, 0)),
]
IN_ORDER = [REPORTS[3], REPORTS[1], REPORTS[2], REPORTS[0], REPORTS[4]]


def created(job, rows, row_type, name="Rows"):
    made = beam.Create(list(rows), reshuffle=False).with_output_types(row_type)
    return job | name >> made | f"Shuffle {name}" >> beam.Reshuffle()


# --- One file of bounded input


def write(path, reports, flags=()):
    """Runs a pipeline that writes the reports."""
    job = local_pipeline(flags)
    _ = created(job, reports, WindowReport) | "Write" >> WriteReports(path, HEADER)
    job.run().wait_until_finish()


def read_all(path):
    header, reports = read_report_file(path)
    assert header == HEADER
    return list(reports)


def test_reports_become_one_file_in_order(tmp_path):
    path = tmp_path / "report.avro"
    write(path, [*REPORTS, REPORTS[0]], REPEATED)  # one arrives twice
    assert read_all(path) == IN_ORDER
    assert os.listdir(tmp_path) == [path.name]


def test_of_contradicting_reports_the_same_one_is_kept_in_any_order_of_arrival(tmp_path):
    versions, kept = [report(5, HeavyHitter("a", None, count)) for count in (7, 30, 9)], []
    for number, arrival in enumerate(([*versions, REPORTS[0]], [REPORTS[0], *versions[::-1]])):
        path = tmp_path / f"report{number}.jsonl"
        write(path, arrival)
        first, second = read_all(path)
        assert first == REPORTS[0]
        kept.append(second)
    assert kept[0] == kept[1]
    assert kept[0] in versions


# --- Rejected rows

REJECTED = [
    RejectedEvents("b.jsonl", [30, 2], "broken line"),
    RejectedEvents("a.parquet", [9, 1, 5], "user is empty"),
    RejectedEvents("b.jsonl", [7], "broken line"),
    RejectedEvents("ü.csv", [-(1 << 62)], "time is no number"),
]
LINES = sorted((found.source, place, found.reason) for found in REJECTED for place in found.positions)


def lines_of(*paths):
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    assert all(list(row) == ["file", "position", "reason"] for row in rows)
    return [tuple(row.values()) for row in rows]


def test_rejected_rows_are_sorted_lines_for_their_owner_alone_from_the_first_byte_on(tmp_path):
    path, modes = tmp_path / "rejected.jsonl", []
    before = os.umask(0)
    try:
        write_output(path, lambda file: modes.append(os.fstat(file.fileno()).st_mode & 0o777), mode=0o600)
        with local_pipeline(REPEATED) as job:
            _ = created(job, random.Random(5).sample(REJECTED, 4), RejectedEvents) | WriteRejected(path)
    finally:
        os.umask(before)
    assert lines_of(path) == LINES
    assert [*modes, path.stat().st_mode & 0o777] == [0o600, 0o600]


def write_folder(path, rejected, flags=()):
    with local_pipeline(flags) as job:
        _ = created(job, rejected, RejectedEvents) | "Write" >> WriteRejectedFolder(path)


def test_rejected_events_of_a_stream_become_private_files_once(tmp_path):
    folder = tmp_path / "deep" / "rejected"
    for rejected in (REJECTED, REJECTED[::-1]):
        write_folder(folder, rejected, REPEATED)
        assert sorted(lines_of(*folder.iterdir())) == LINES
        assert len(list(folder.iterdir())) == 4
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


# --- Reports of a stream

PLAN = small_plan()
STREAM = [report(window, HeavyHitter("Ünïcode ☃", ABOVE, None)) for window in range(0, 40, 3)]
KEYS = {f"news|1970-01-{1 + window // 24:02d}T{window % 24:02d}:00:00Z" for window in range(0, 40, 3)}
ENDED = RunEnded("news", 40, len(STREAM))


def write_stream(path, reports=STREAM, ended=(ENDED,), run_id="run-1"):
    """Runs a pipeline that writes the reports, each bundle twice; returns the keys."""
    keys = Collected()
    with local_pipeline(REPEATED) as job:
        records = created(job, reports, WindowReport, "Reports"), created(job, ended, RunEnded, "Ended")
        write = WriteReportStream(path, PLAN, run_id=run_id, stream="news")
        _ = records | "Write" >> write | "Keys" >> keys.sink()
    return set(keys.values)


def test_a_stream_of_reports_is_written_once_and_ended_in_any_order(tmp_path):
    for reports in (STREAM, STREAM[::-1]):
        assert write_stream(tmp_path / "reports", reports) == {*KEYS, "news|end"}
        written = read_report(tmp_path / "reports")
        assert (written.header, list(written)) == (ReportHeader.of_plan(PLAN, "run-1", "news"), STREAM)
        assert written.ended == ENDED


def test_a_folder_is_opened_when_the_pipeline_begins_and_a_second_answer_or_another_run_fails_the_job(tmp_path):
    """A first window may take a day."""
    folder = tmp_path / "reports"
    write_stream(folder, [], ())
    assert (list(read_report(folder)), read_report(folder).ended) == ([], None)
    with pytest.raises(Exception, match="belongs to another run"):
        write_stream(folder, [], (), "run-2")
    write_stream(folder, STREAM, ())
    with pytest.raises(Exception, match="already has another answer") as caught:
        write_stream(folder, [report(0, HeavyHitter("secret label", ABOVE, None))])
    assert "secret label" not in str(caught.value)
    assert list(read_report(folder)) == STREAM
