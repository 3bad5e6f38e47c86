"""The end of a stream: a sink and a folder of rejected events, under bundles that run twice and workers that fail."""

from __future__ import annotations

import pathlib
import pickle

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from dp_transforms.beam.write_report_stream import (
    WriteReportStream,
    _SharedWriter,
    _WriteStreamDoFn,
)
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.kafka_topic import KafkaTopic
from dp_transforms.monitor.window_report import ABOVE, HeavyHitter, RunEnded, WindowReport
from dp_transforms.reports import ReportFolder, ReportHeader, ReportTopic
from tests.helpers.beam_pipelines import Collected, local_pipeline

HOUR = 3_600_000_000
HEADER = ReportHeader("run-1", "news", "Each user's log is protected with ε = 2.", {"epsilon": 2.0})
REPEATED = ["--direct_runner_bundle_repeat=1"]
OTHER_PROCESS = ["--direct_running_mode=multi_processing", "--direct_num_workers=1"]
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
        if OTHER_PROCESS[0] in flags:
            assert_that(written, equal_to([*KEYS, "news|end"]))
        else:
            _ = written | "Keys" >> keys.sink()
    return keys.values


def contents(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


@pytest.fixture
def sink(tmp_path):
    return ReportFolder(str(tmp_path / "reports"))


@pytest.mark.parametrize("file_format", ["jsonl", "avro"])
@pytest.mark.parametrize("flags", [[], REPEATED], ids=["once", "repeated"])
def test_a_stream_of_reports_is_written_once_and_ended(tmp_path, file_format, flags):
    sink = ReportFolder(str(tmp_path / "reports"), file_format)
    assert set(write(sink, flags=flags)) == {*KEYS, "news|end"}
    assert sink.read("run-1") == (HEADER, REPORTS, ENDED)
    before = contents(sink.path)
    write(sink, REPORTS[::-1], flags=flags)
    assert contents(sink.path) == before


def test_workers_in_other_processes_write_the_same(sink):
    write(sink, flags=OTHER_PROCESS)
    assert sink.read("run-1") == (HEADER, REPORTS, ENDED)


def test_reports_in_windows_of_beam_are_written_too(sink):
    write(sink, timestamps=True)
    assert sink.read("run-1") == (HEADER, REPORTS, ENDED)


def test_a_stream_without_reports_ends_and_one_without_an_end_does_not(sink, tmp_path):
    write(sink, [])
    assert sink.read("run-1") == (HEADER, [], ENDED)
    going_on = ReportFolder(str(tmp_path / "other"))
    write(going_on, ended=())
    assert going_on.read("run-1") == (HEADER, REPORTS, None)
    write(going_on, [])
    assert going_on.read("run-1") == (HEADER, REPORTS, ENDED)


def test_a_second_answer_fails_the_run_and_is_written_nowhere(sink):
    write(sink, ended=())
    before = contents(sink.path)
    with pytest.raises(Exception, match="already has another answer") as caught:
        write(sink, [report(0, "secret label")])
    assert "secret label" not in str(caught.value)
    assert contents(sink.path) == before
    with pytest.raises(Exception, match="belongs to another run"):
        write(sink, header=ReportHeader("run-2", "news", HEADER.guarantee, HEADER.plan))
    assert contents(sink.path) == before


class SlowSink:
    """A real folder, whose writers say what is done to them."""

    log: list[str] = []  # noqa: RUF012

    def __init__(self, folder, fail_at=""):
        self._folder = folder
        self._fail_at = fail_at

    def open(self, header):
        self.log.append("open")
        return LoggedWriter(self._folder.open(header), self.log, self._fail_at)


class LoggedWriter:
    def __init__(self, writer, log, fail_at):
        self._writer, self._log, self._fail_at = writer, log, fail_at

    def write(self, row):
        key = self._writer.write(row)
        self._log.append("write")
        if key == self._fail_at:
            raise RuntimeError("the disk is gone")
        return key

    def end(self, ended):
        self._log.append("end")
        return self._writer.end(ended)

    def commit(self):
        self._log.append("commit")

    def close(self):
        self._log.append("close")


@pytest.fixture
def log():
    SlowSink.log.clear()
    return SlowSink.log


def test_one_writer_writes_all_and_commits_before_a_bundle_ends(sink, log):
    write(SlowSink(sink))
    assert log.count("open") == 1
    assert log.count("write") == len(REPORTS)
    assert log.count("end") == 1
    assert log[log.index("end") + 1] == "commit"
    assert log[-1] == "close"
    assert "close" not in log[:-1]
    last = max(place for place, event in enumerate(log) if event in ("write", "end"))
    assert "commit" in log[last:]


def test_a_writer_that_failed_is_closed_and_commits_nothing(sink, log):
    with pytest.raises(Exception, match="the disk is gone"):
        write(SlowSink(sink, KEYS[2]), ended=())
    # That it is closed before the next bundle, and not with its worker: tests/beam/test_write_report_stream_writers.py.
    assert log == ["open", "write", "write", "write", "close"]
    assert sink.read("run-1") == (HEADER, REPORTS[:3], None)


def test_the_settings_of_a_client_are_shown_nowhere():
    config = {"sasl.password": "hunter2"}
    topic = ReportTopic("broker:9092", "reports", client_config=config)
    source = KafkaTopic("broker:9092", "clicks", EventFields("user", "item", "time", "s"), client_config=config)
    do_fn = _WriteStreamDoFn(topic, HEADER)
    do_fn.setup()  # a sink is opened with the first report
    for shown in (topic, source, WriteReportStream(topic, HEADER), do_fn, _SharedWriter._by_step):
        assert "hunter2" not in f"{shown!r} {shown}"
    assert pickle.loads(pickle.dumps(topic)).client_config == config  # noqa: S301


def test_copies_of_a_step_share_a_writer_and_other_steps_do_not(sink):
    do_fns = [_WriteStreamDoFn(sink, HEADER), _WriteStreamDoFn(sink, HEADER)]
    do_fns += [pickle.loads(pickle.dumps(do_fn)) for do_fn in do_fns]  # noqa: S301
    for do_fn in do_fns:
        do_fn.setup()
    assert do_fns[0]._shared is do_fns[2]._shared
    assert do_fns[1]._shared is do_fns[3]._shared is not do_fns[0]._shared
