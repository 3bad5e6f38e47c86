"""The writer that all copies of a step share: one thread at a time, and a new one after any error. No pipeline here."""

from __future__ import annotations

import threading

import pytest

from dp_transforms.beam.write_report_stream import _encode_ended, _encode_report, _SharedWriter, _WriteStreamDoFn
from dp_transforms.monitor.window_report import ABOVE, HeavyHitter, RunEnded, WindowReport
from dp_transforms.reports import ReportFolder, ReportHeader

HOUR = 3_600_000_000
HEADER = ReportHeader("run-1", "news", "Each user's log is protected with ε = 2.", {"epsilon": 2.0})
REPORTS = [
    WindowReport("news", n * HOUR, (n + 1) * HOUR, [HeavyHitter("a", ABOVE, None)], 2.0, 1e-9, 0.1) for n in range(4)
]
ENDED = RunEnded("news", 4, 4)


class LoggedSink:
    """A real folder, whose writers say what is done to them. fails: windows whose writing ends in an error."""

    def __init__(self, folder: ReportFolder) -> None:
        self.folder = folder
        self.log: list[str] = []
        self.fails: dict[int, BaseException] = {}

    def open(self, header: ReportHeader) -> LoggedWriter:
        self.log.append("open")
        return LoggedWriter(self)


class LoggedWriter:
    def __init__(self, sink: LoggedSink) -> None:
        self._sink = sink
        self._writer = sink.folder.open(HEADER)

    def write(self, report: WindowReport) -> str:
        key = self._writer.write(report)
        self._sink.log.append("write")
        if report.window_start // HOUR in self._sink.fails:
            raise self._sink.fails[report.window_start // HOUR]
        return key

    def end(self, ended: RunEnded) -> str:
        self._sink.log.append("end")
        return self._writer.end(ended)

    def commit(self) -> None:
        self._sink.log.append("commit")

    def close(self) -> None:
        self._sink.log.append("close")


@pytest.fixture
def sink(tmp_path) -> LoggedSink:
    return LoggedSink(ReportFolder(str(tmp_path / "reports")))


def bundle(do_fn: _WriteStreamDoFn, reports=REPORTS, ended=()) -> list[str]:
    do_fn.start_bundle()
    elements = [*map(_encode_report, reports), *map(_encode_ended, ended)]
    keys = [key for encoded in elements for key in do_fn.process(("news", encoded))]
    do_fn.finish_bundle()
    return keys


@pytest.mark.parametrize("error", [RuntimeError("the disk is gone"), KeyboardInterrupt(), SystemExit(3)])
def test_a_writer_that_failed_is_closed_at_once_and_the_next_bundle_opens_a_new_one(sink, error) -> None:
    """Whatever the error: what the writer had open is in doubt, and only opening the sink again tells."""
    do_fn = _WriteStreamDoFn(sink, HEADER)
    do_fn.setup()
    assert bundle(do_fn, REPORTS[:1]) == ["news|1970-01-01T00:00:00Z"]
    sink.fails = {2: error}
    with pytest.raises(type(error)):
        bundle(do_fn)
    assert sink.log == ["open", "write", "commit", *["write"] * 3, "close"]
    sink.fails = {}
    sink.log.clear()
    assert len(bundle(do_fn, ended=[ENDED])) == len(REPORTS) + 1
    assert bundle(do_fn, [], [ENDED]) == ["news|end"]
    assert bundle(do_fn, []) == []
    assert sink.log == ["open", *["write"] * 4, "end", "commit", "end", "commit"]
    assert sink.folder.read("run-1") == (HEADER, REPORTS, ENDED)
    do_fn.teardown()
    do_fn.teardown()
    assert sink.log[-2:] == ["commit", "close"]


def test_a_sink_that_cannot_be_opened_is_tried_again(sink, monkeypatch) -> None:
    shared = _SharedWriter(sink, HEADER)
    with monkeypatch.context() as patched:
        patched.setattr(LoggedSink, "open", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError), shared.opened():
            pass
    with shared.opened() as writer:
        writer.write(REPORTS[0])
    shared.close()
    assert sink.log == ["open", "write", "close"]


def test_two_threads_take_turns_at_the_writer(sink) -> None:
    """Two bundles of one process: were they to mix, one would commit half of the other."""
    shared = _SharedWriter(sink, HEADER)
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
        assert sink.log == ["open"], "nor is it closed under the one who has it"
    thread.join(60)
    closer.join(60)
    assert other_is_in.is_set()
    assert not thread.is_alive()
    assert not closer.is_alive()
    shared.close()
    assert sink.log[-1] == "close"
    assert sink.log.count("open") == sink.log.count("close")
