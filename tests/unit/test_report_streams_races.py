"""Two workers at one window: the first answer stays, whichever of their steps come between. And files of other runs."""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Callable

import pytest

from dp_transforms.errors import StreamError
from dp_transforms.monitor.window_report import HeavyHitter, RunEnded, WindowReport
from dp_transforms.reports import ReportHeader, report_file_bytes, report_folder
from dp_transforms.reports.report_folder import FILE_FORMATS, ReportFolder

HOUR = 3_600_000_000
HEADER = ReportHeader("run-1", "news", "Each user's whole log is protected with ε = 2.", {"epsilon": 2.0})
ENDED = RunEnded("news", 48, 10_000)


def report(window: int, noisy_count: int, stream: str = "news") -> WindowReport:
    hitters = [HeavyHitter("a", None, noisy_count)]
    return WindowReport(stream, window * HOUR, (window + 1) * HOUR, hitters, 2.0, 1e-9, 0.25)


@pytest.fixture(params=FILE_FORMATS)
def sink(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> ReportFolder:
    return ReportFolder(str(tmp_path / "reports"), request.param)


def contents(sink: ReportFolder) -> dict[str, bytes]:
    """All files, hidden ones too."""
    return {path.name: path.read_bytes() for path in pathlib.Path(sink.path).iterdir()}


def interrupted_at(monkeypatch: pytest.MonkeyPatch, step: str, other: Callable[[], object]) -> None:
    """Before the next call of this function of `os`, another worker does its work."""
    original = getattr(os, step)

    def interrupted(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(report_folder.os, step, original)
        other()
        return original(*arguments, **options)

    monkeypatch.setattr(report_folder.os, step, interrupted)


STEPS = ["fchmod", "fsync", "link"]  # of the one that comes second, behind its look whether there is an answer


@pytest.mark.parametrize("step", STEPS)
def test_the_loser_of_a_race_is_refused_and_the_first_answer_stays(sink, monkeypatch, step) -> None:
    """Two answers for a window would be two outputs, of which the budget pays one."""
    loser, winner = sink.open(HEADER), sink.open(HEADER)
    interrupted_at(monkeypatch, step, lambda: winner.write(report(3, 40)))
    with pytest.raises(StreamError, match="already has another answer"):
        loser.write(report(3, 41))
    assert sink.read("run-1") == (HEADER, [report(3, 40)], None)
    interrupted_at(monkeypatch, step, lambda: winner.end(ENDED))
    with pytest.raises(StreamError, match="has already ended"):
        loser.end(ENDED._replace(windows=47))
    assert sink.read("run-1")[2] == ENDED
    assert not [name for name in contents(sink) if name.endswith(".tmp")], "and what it had begun is tidied up"


@pytest.mark.parametrize("step", STEPS)
def test_the_loser_of_a_race_with_the_same_answer_goes_on(sink, monkeypatch, step) -> None:
    loser, winner = sink.open(HEADER), sink.open(HEADER)
    interrupted_at(monkeypatch, step, lambda: winner.write(report(3, 40)))
    assert loser.write(report(3, 40)) == "news|1970-01-01T03:00:00Z"
    before = contents(sink)
    assert loser.write(report(3, 40)) == "news|1970-01-01T03:00:00Z"
    assert contents(sink) == before


@pytest.mark.parametrize("step", STEPS)
def test_of_two_runs_that_begin_in_one_folder_one_is_refused(sink, monkeypatch, step) -> None:
    other = ReportHeader("run-2", "news", HEADER.guarantee, HEADER.plan)
    interrupted_at(monkeypatch, step, lambda: sink.open(other))
    with pytest.raises(StreamError, match="its run_id is 'run-2', and this run has 'run-1'"):
        sink.open(HEADER)
    assert sink.read() == (other, [], None)


def window_of(sink: ReportFolder, header: ReportHeader, reports: list[WindowReport]) -> bytes:
    return report_file_bytes(header, reports, file_format=FILE_FORMATS[sink.file_format])


@pytest.mark.parametrize(
    ("header", "reports"),
    [
        (ReportHeader("run-2", "news", HEADER.guarantee, HEADER.plan), [report(3, 40)]),
        (ReportHeader("run-1", "news", HEADER.guarantee, {"epsilon": 9.0}), [report(3, 40)]),
        (HEADER, []),
        (HEADER, [report(3, 40), report(4, 40)]),
        (HEADER, [report(4, 40)]),
        (HEADER, [report(3, 40, stream="olds")]),
    ],
    ids=["run", "plan", "none", "two", "window", "stream"],
)
def test_a_file_under_the_name_of_a_window_that_is_not_of_this_run_is_refused(sink, header, reports) -> None:
    """By a reader, and by a writer that finds it there: it is not the answer, and is not replaced."""
    writer = sink.open(HEADER)
    writer.write(report(3, 40))
    (name,) = set(contents(sink)) - {"header.json"}
    path = pathlib.Path(sink.path, name)
    path.write_bytes(window_of(sink, header, reports))
    before = contents(sink)
    with pytest.raises(StreamError, match=r"is not a window of this run|cannot be used"):
        sink.read("run-1")
    with pytest.raises(StreamError, match=r"is not a window of this run|cannot be used"):
        writer.write(report(3, 40))
    assert contents(sink) == before


def test_a_window_of_another_stream_under_its_own_name_is_refused(sink, tmp_path) -> None:
    """The name alone says nothing: this one fits what is in the file."""
    olds = ReportFolder(str(tmp_path / "olds"), sink.file_format)
    header = ReportHeader("run-1", "olds", HEADER.guarantee, HEADER.plan)
    olds.open(header).write(report(3, 40, stream="olds"))
    (name,) = set(contents(olds)) - {"header.json"}
    sink.open(HEADER).write(report(3, 40))
    shutil.copy(pathlib.Path(olds.path, name), sink.path)
    with pytest.raises(StreamError, match="is not a window of this run"):
        sink.read("run-1")
    pathlib.Path(sink.path, name).write_bytes(window_of(sink, HEADER, [report(3, 40, stream="olds")]))
    with pytest.raises(StreamError, match=r"is not a window of this run|cannot be used"):
        sink.read("run-1")


def test_a_header_as_long_as_it_may_be_is_read_and_a_longer_one_is_not(sink) -> None:
    sink.open(HEADER)
    path = pathlib.Path(sink.path, "header.json")
    shortest = path.read_bytes()
    path.write_bytes(shortest + b" " * (report_folder._MAX_FIELDS_BYTES - len(shortest)))
    assert sink.read("run-1") == (HEADER, [], None)
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(StreamError, match=r"was not written by shh\. Start a new run in another folder\.$"):
        sink.read("run-1")
