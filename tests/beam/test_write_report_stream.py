"""The end of a stream: sinks that keep the first answer, under bundles that run twice and workers that fail; and the
writer that all copies of a step share: one thread at a time, and a new one after any error."""

from __future__ import annotations

import pickle
import threading

import apache_beam as beam
import pytest

from dp_transforms.beam.write_reports import (
    WriteReportStream,
    _pack,
    _SharedWriter,
    _WriteStreamDoFn,
)
from dp_transforms.core.window_report import ABOVE, HeavyHitter, WindowReport
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.reports.report_records import RunEnded
from tests.helpers.beam_pipelines import Collected, local_pipeline
from tests.helpers.sinks import stored

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
    before = stored(sink)
    write(sink, REPORTS[::-1], flags=REPEATED)
    assert stored(sink) == before


def test_a_sink_is_opened_when_the_pipeline_begins(sink):
    """A first window may take a day. And to open a topic took two seconds, which the first report waited for."""
    write(sink, [], ended=())
    assert sink.read("run-1") == (HEADER, [], None)
    with pytest.raises(Exception, match="belongs to another run"):
        write(sink, [], ended=(), header=ReportHeader("run-2", "news", HEADER.guarantee, HEADER.plan))


def test_a_second_answer_or_another_run_fails_the_job_and_is_written_nowhere(sink):
    write(sink, ended=())
    before = stored(sink)
    with pytest.raises(Exception, match="already has another answer") as caught:
        write(sink, [report(0, "secret label")])
    assert "secret label" not in str(caught.value)
    with pytest.raises(Exception, match="belongs to another run"):
        write(sink, header=ReportHeader("run-2", "news", HEADER.guarantee, HEADER.plan))
    assert stored(sink) == before


class LoggedSink:
    """A real folder, whose writers say what is done to them: all copies of a sink to one list. fails: the errors of
    writing, by key."""

    log: list[str] = []  # noqa: RUF012
    fails: dict[str, BaseException] = {}  # noqa: RUF012

    def __init__(self, folder: ReportFolder) -> None:
        self.folder = folder

    def open(self, header: ReportHeader) -> LoggedWriter:
        self.log.append("open")
        return LoggedWriter(self.folder.open(header), self.log, self.fails)


class LoggedWriter:
    def __init__(self, writer, log, fails):
        self._writer, self._log, self._fails = writer, log, fails

    def write(self, row):
        key = self._writer.write(row)
        self._log.append("write")
        if key in self._fails:
            raise self._fails[key]
        return key

    def end(self, ended):
        self._log.append("end")
        return self._writer.end(ended)

    def commit(self):
        self._log.append("commit")

    def close(self):
        self._log.append("close")


@pytest.fixture
def logged(sink):
    LoggedSink.log.clear()
    LoggedSink.fails.clear()
    return LoggedSink(sink)


def test_one_writer_writes_all_and_commits_before_a_bundle_ends(logged):
    write(logged)
    log = logged.log
    assert log.count("open") == 1
    assert log.count("write") == len(REPORTS)
    assert log.count("end") == 1
    assert log[log.index("end") + 1] == "commit"
    assert log[-1] == "close"
    assert "close" not in log[:-1]
    last = max(place for place, event in enumerate(log) if event in ("write", "end"))
    assert "commit" in log[last:]


def test_copies_of_a_step_share_a_writer_and_other_steps_do_not(sink):
    do_fns = [_WriteStreamDoFn(sink, HEADER), _WriteStreamDoFn(sink, HEADER)]
    do_fns += [pickle.loads(pickle.dumps(do_fn)) for do_fn in do_fns]  # noqa: S301
    for do_fn in do_fns:
        do_fn.setup()
    assert do_fns[0]._shared is do_fns[2]._shared
    assert do_fns[1]._shared is do_fns[3]._shared is not do_fns[0]._shared


def bundle(do_fn: _WriteStreamDoFn, reports=REPORTS, ended=()) -> list[str]:
    do_fn.start_bundle()
    elements = [*map(_pack, reports), *map(_pack, ended)]
    keys = [key for encoded in elements for key in do_fn.process(("news", encoded))]
    do_fn.finish_bundle()
    return keys


@pytest.mark.parametrize("error", [RuntimeError("the disk is gone"), KeyboardInterrupt(), SystemExit(3)])
def test_a_writer_that_failed_is_closed_at_once_and_the_next_bundle_opens_a_new_one(logged, error):
    """Whatever the error: what the writer had open is in doubt, and only opening the sink again tells."""
    do_fn = _WriteStreamDoFn(logged, HEADER)
    do_fn.setup()
    assert bundle(do_fn, REPORTS[:1]) == KEYS[:1]
    logged.fails[KEYS[2]] = error
    with pytest.raises(type(error)):
        bundle(do_fn)
    assert logged.log == ["open", "write", "commit", *["write"] * 3, "close"]
    logged.fails.clear()
    logged.log.clear()
    assert len(bundle(do_fn, ended=[ENDED])) == len(REPORTS) + 1
    assert bundle(do_fn, [], [ENDED]) == ["news|end"]
    assert bundle(do_fn, []) == []
    assert logged.log == ["open", *["write"] * len(REPORTS), "end", "commit", "end", "commit"]
    assert logged.folder.read("run-1") == (HEADER, REPORTS, ENDED)
    do_fn.teardown()
    do_fn.teardown()
    assert logged.log[-2:] == ["commit", "close"]


def test_a_sink_that_cannot_be_opened_is_tried_again(logged, monkeypatch):
    shared = _SharedWriter(logged, HEADER)
    with monkeypatch.context() as patched:
        patched.setattr(LoggedSink, "open", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError), shared.opened():
            pass
    with shared.opened() as writer:
        writer.write(REPORTS[0])
    shared.close()
    assert logged.log == ["open", "write", "close"]


def test_two_threads_take_turns_at_the_writer(logged):
    """Two bundles of one process: were they to mix, one would commit half of the other."""
    shared = _SharedWriter(logged, HEADER)
    other_is_in, other_began = threading.Event(), threading.Event()

    def enter() -> None:
        other_began.set()
        with shared.opened():
            other_is_in.set()

    thread = threading.Thread(target=enter)
    with shared.opened():
        thread.start()
        assert other_began.wait(60)
        assert not other_is_in.wait(0.5), "a slow machine may let a missing lock pass here, never a good one fail"
        closer = threading.Thread(target=shared.close)
        closer.start()
        closer.join(0.2)
        assert logged.log == ["open"], "nor is it closed under the one who has it"
    thread.join(60)
    closer.join(60)
    assert other_is_in.is_set()
    assert not thread.is_alive()
    assert not closer.is_alive()
    shared.close()
    assert logged.log[-1] == "close"
    assert logged.log.count("open") == logged.log.count("close")
