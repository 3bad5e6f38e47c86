"""Files that a pipeline writes, reports and rejected rows: whole, once, whatever runs twice or dies, and with the modes
that they should have."""

import json
import os
import random
import signal
import stat

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from dp_transforms.beam.write_reports import WriteRejected, WriteRejectedFolder, WriteReports
from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter, WindowReport
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.reports import ReportHeader, read_report_file
from dp_transforms.reports.files import replace_whole
from dp_transforms.stores.local_files import publish
from tests.helpers.beam_pipelines import local_pipeline
from tests.helpers.killed_nights import in_a_process

HOUR = 3_600_000_000
HEADER = ReportHeader("run-1", "news", "Each user's log is protected with ε = 2.", {"epsilon": 2.0})
REPEATED = ["--direct_runner_bundle_repeat=1"]
OTHER_PROCESS = ["--direct_running_mode=multi_processing", "--direct_num_workers=1"]


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


def write(path, reports, flags=(), header=HEADER):
    """Runs a pipeline that writes the reports; returns its result."""
    job = local_pipeline(flags)
    (
        job
        | "Reports" >> beam.Create(reports, reshuffle=False).with_output_types(WindowReport)
        | "Shuffle" >> beam.Reshuffle()
        | "Write" >> WriteReports(path, header)
    )
    result = job.run()
    result.wait_until_finish()
    return result


def conflicts(result):
    found = result.metrics().query(beam.metrics.MetricsFilter().with_name("conflicting_reports"))["counters"]
    return sum(counter.committed for counter in found)


def read_all(path):
    header, reports = read_report_file(path)
    assert header == HEADER
    return list(reports)


def check_types(row):
    assert row._fields == WindowReport._fields
    assert all(entry._fields == HeavyHitter._fields for entry in row.heavy_hitters)
    return row


def test_released_types_travel_as_rows_and_survive_a_shuffle():
    for row_type in (HeavyHitter, WindowReport, RejectedEvents):
        assert isinstance(beam.coders.registry.get_coder(row_type), beam.coders.RowCoder)
    coder = beam.coders.registry.get_coder(WindowReport)
    for original in REPORTS:
        assert coder.decode(coder.encode(original)) == original
    with local_pipeline() as job:
        shuffled = job | beam.Create(REPORTS).with_output_types(WindowReport) | beam.Reshuffle() | beam.Map(check_types)
        assert_that(shuffled, equal_to(REPORTS))


@pytest.mark.parametrize(("ending", "flags"), [("avro", REPEATED), ("jsonl", OTHER_PROCESS)])
def test_reports_become_one_file_in_order(tmp_path, ending, flags):
    path = tmp_path / f"report.{ending}"
    result = write(path, [*REPORTS, REPORTS[0]], flags)  # one arrives twice
    assert read_all(path) == IN_ORDER
    assert os.listdir(tmp_path) == [path.name]
    assert conflicts(result) == 0


def test_of_contradicting_reports_the_same_one_is_kept_in_any_order_of_arrival(tmp_path):
    versions = [report(5, HeavyHitter("a", None, count)) for count in (7, 30, 9)]
    kept = []
    for number, arrival in enumerate(([*versions, REPORTS[0]], [REPORTS[0], *versions[::-1]])):
        path = tmp_path / f"report{number}.jsonl"
        result = write(path, arrival)
        assert conflicts(result) == 2
        first, second = read_all(path)
        assert first == REPORTS[0]
        kept.append(second)
    assert kept[0] == kept[1]
    assert kept[0] in versions


# Files appear as a whole.


def test_a_failure_while_writing_leaves_nothing(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Exception, match="No space left"):
        write(tmp_path / "report.avro", REPORTS)
    assert os.listdir(tmp_path) == []


def test_a_worker_that_dies_before_the_file_is_complete_leaves_no_output(tmp_path):
    def die(handle):
        handle.write(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_process(lambda: replace_whole(str(tmp_path / "report.avro"), die)) == (True, "")
    (left,) = os.listdir(tmp_path)
    assert left.endswith(".partial")
    replace_whole(str(tmp_path / "report.avro"), lambda handle: handle.write(b"whole"))  # as the step runs again
    assert os.listdir(tmp_path) == ["report.avro"]


# Rejected rows.

REJECTED = [
    RejectedEvents("b.jsonl", [30, 2], "broken line"),
    RejectedEvents("a.parquet", [5], "time is missing"),
    RejectedEvents("a.parquet", [9, 1, 5], "user is empty"),
    RejectedEvents("b.jsonl", [7], "broken line"),
    RejectedEvents("ü.csv", [-(1 << 62)], "time is no number"),
]
REJECTED_LINES = [
    ("a.parquet", 1, "user is empty"),
    ("a.parquet", 5, "time is missing"),
    ("a.parquet", 5, "user is empty"),
    ("a.parquet", 9, "user is empty"),
    ("b.jsonl", 2, "broken line"),
    ("b.jsonl", 7, "broken line"),
    ("b.jsonl", 30, "broken line"),
    ("ü.csv", -(1 << 62), "time is no number"),
]


def write_lines_file(path, rejected, flags=()):
    with local_pipeline(flags) as job:
        elements = job | beam.Create(rejected, reshuffle=False)
        elements.element_type = RejectedEvents
        elements | "Shuffle" >> beam.Reshuffle() | "WriteRejected" >> WriteRejected(path)


def lines_of(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(list(row) == ["file", "position", "reason"] for row in rows)
    return [tuple(row.values()) for row in rows]


@pytest.mark.parametrize("flags", [[], REPEATED], ids=["once", "repeated"])
def test_rejected_rows_are_written_one_by_one_and_sorted(tmp_path, flags):
    path = tmp_path / "rejected.jsonl"
    write_lines_file(path, random.Random(5).sample(REJECTED, len(REJECTED)), flags)
    assert lines_of(path) == REJECTED_LINES


def test_rejected_rows_are_for_their_owner_alone_from_the_first_byte_on(tmp_path):
    path, modes = tmp_path / "rejected.jsonl", []
    before = os.umask(0)
    try:
        replace_whole(str(path), lambda file: modes.append(os.fstat(file.fileno()).st_mode & 0o777), mode=0o600)
        assert modes == [0o600]
        write_lines_file(path, REJECTED)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    publish(path, tmp_path / "published.jsonl")
    assert (tmp_path / "published.jsonl").stat().st_mode & 0o777 == 0o600


# The folder of a stream.


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.iterdir())}


OF_A_STREAM = [RejectedEvents("topic/0", [7, 3], "no user"), RejectedEvents("topic/1", list(range(100)), "broken line")]


def write_folder(path, rejected, flags=()):
    with local_pipeline(flags) as job:
        _ = (
            job
            | beam.Create(rejected, reshuffle=False).with_output_types(RejectedEvents)
            | "Write" >> WriteRejectedFolder(path)
        )


@pytest.mark.parametrize("flags", [[], REPEATED], ids=["once", "repeated"])
def test_rejected_events_become_private_files_with_the_lines_of_a_replay(tmp_path, flags):
    folder = tmp_path / "deep" / "rejected"
    write_folder(folder, OF_A_STREAM, flags)
    before = contents(folder)
    write_folder(folder, OF_A_STREAM[::-1], flags)
    assert contents(folder) == before
    assert len(before) == 2
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    with local_pipeline() as job:
        _ = job | beam.Create(OF_A_STREAM).with_output_types(RejectedEvents) | WriteRejected(tmp_path / "replay.jsonl")
    lines = sorted(line for content in before.values() for line in content.decode().splitlines())
    assert lines == sorted((tmp_path / "replay.jsonl").read_text().splitlines())
    assert {"file": "topic/0", "position": 3, "reason": "no user"} in map(json.loads, lines)


def test_rejected_events_that_cannot_be_written_fail_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="is never overwritten"):
        write_folder(tmp_path / "file", OF_A_STREAM[:1])
    assert os.listdir(tmp_path) == ["file"]
