"""A folder of reports: the first answer of a window stays, whatever is written again and whoever dies in between."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import pickle
import random
import signal
import stat
import time
from typing import NamedTuple

import pytest

from dp_transforms.errors import StreamError
from dp_transforms.monitor.window_report import ABOVE, BETWEEN, HeavyHitter, RunEnded, WindowReport
from dp_transforms.reports import ReportFileError, ReportHeader, read_report_file
from dp_transforms.reports.report_folder import ReportFolder, read_report_folder

HOUR = 3_600_000_000
START = 1_506_826_800_000_000  # 2017-10-01T03:00:00Z
HEADER = ReportHeader("run-1", "news", "Each user's whole log is protected with ε = 2.", {"epsilon": 2.0})
FORMATS = ["jsonl", "avro"]
ENDED = RunEnded("news", 48, 10_000)


def report(window, *heavy_hitters, stream="news"):
    start = START + window * HOUR
    return WindowReport(stream, start, start + HOUR, list(heavy_hitters), 2.0, 1e-9, 0.01 * (window + 1))


REPORTS = [
    report(0, HeavyHitter("Ünïcode ☃", ABOVE, None), HeavyHitter("b", BETWEEN, 812)),
    report(2, HeavyHitter("", None, -3)),
    report(30, *(HeavyHitter(f"item-{rank}", None, 900 - rank) for rank in range(50))),
]
OTHER = report(2, HeavyHitter("", None, -4))


def write_all(sink, reports=REPORTS, ended=ENDED, header=HEADER):
    writer = sink.open(header)
    keys = [writer.write(window) for window in reports]
    if ended is not None:
        keys.append(writer.end(ended))
    writer.commit()
    writer.close()
    return keys


def contents(folder):
    """All files, hidden ones too."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(params=FORMATS)
def sink(request, tmp_path):
    return ReportFolder(str(tmp_path / "deep" / "reports"), request.param)


def folder_of(sink):
    return pathlib.Path(sink.path)


def test_what_is_written_is_read_in_order_as_report_files_of_their_own(sink):
    assert sink.read("run-1") == (None, [], None)
    assert sink.ended("run-1") is None
    keys = write_all(sink, REPORTS[::-1], ended=None)
    assert keys == ["news|2017-10-02T09:00:00Z", "news|2017-10-01T05:00:00Z", "news|2017-10-01T03:00:00Z"]
    assert sink.read("run-1") == (HEADER, REPORTS, None)
    assert write_all(sink, []) == ["news|end"]
    assert sink.read("run-1") == (HEADER, REPORTS, ENDED)
    assert sink.ended("run-1") == ENDED
    assert read_report_folder(sink.path) == (HEADER, REPORTS, ENDED)
    names = sorted(set(os.listdir(sink.path)) - {"header.json", "ended.json"})
    assert [name[:18] for name in names] == ["2017-10-01T030000Z", "2017-10-01T050000Z", "2017-10-02T090000Z"]
    header, reports = read_report_file(folder_of(sink) / names[1])
    assert (header, list(reports)) == (HEADER, [REPORTS[1]])


def test_what_is_written_again_changes_no_byte_and_is_the_same_elsewhere(sink, tmp_path):
    write_all(sink)
    before = contents(folder_of(sink))
    for _ in range(2):
        write_all(sink)
    assert contents(folder_of(sink)) == before
    write_all(ReportFolder(str(tmp_path / "again"), sink.file_format), REPORTS[::-1])
    assert contents(tmp_path / "again") == before


def test_a_second_answer_is_refused_and_written_nowhere(sink):
    write_all(sink)
    before = contents(folder_of(sink))
    writer = sink.open(HEADER)
    with pytest.raises(StreamError, match=r"T05:00:00Z' already has another answer; nothing was written"):
        writer.write(OTHER)
    with pytest.raises(StreamError, match="has already ended"):
        writer.end(ENDED._replace(windows=47))
    assert contents(folder_of(sink)) == before


def test_the_same_answer_in_other_bytes_is_no_second_answer(sink):
    """As another release of a library may pack it."""
    writer = sink.open(HEADER)
    writer.write(REPORTS[0])
    (path,) = folder_of(sink).glob("2017*")
    if sink.file_format == "avro":
        path.write_bytes(path.read_bytes().replace(path.read_bytes()[-16:], b"0123456789abcdef"))
    else:
        path.write_bytes(path.read_bytes().replace(b", ", b",  "))
    assert writer.write(REPORTS[0]) == "news|2017-10-01T03:00:00Z"


def test_an_end_and_the_reports_must_agree(sink):
    """Reports beyond the end are another attempt's, which has read other records."""
    writer = sink.open(HEADER)
    for each in REPORTS[:2]:
        writer.write(each)
    with pytest.raises(StreamError, match="it holds 2 reports, and the run ends with 1; its end was not written"):
        writer.end(ENDED._replace(reports=1))
    assert sink.read("run-1")[2] is None
    writer.end(ENDED._replace(reports=3))  # the last one may still come
    writer.write(REPORTS[2])
    writer.write(REPORTS[0])
    with pytest.raises(StreamError, match="the run has ended with 3 reports, and all are there; nothing was written"):
        writer.write(report(9))
    assert sink.read("run-1")[1:] == (REPORTS, ENDED._replace(reports=3))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (ReportHeader("run-2", "news", HEADER.guarantee, HEADER.plan), "run_id is 'run-1', and this run has 'run-2'"),
        (ReportHeader("run-1", "olds", HEADER.guarantee, HEADER.plan), "stream is 'news', and this run has 'olds'"),
        (ReportHeader("run-1", "news", HEADER.guarantee, {"epsilon": 3.0}), "another plan"),
    ],
)
def test_the_folder_of_another_run_is_refused(sink, other, said):
    write_all(sink)
    before = contents(folder_of(sink))
    with pytest.raises(StreamError, match=said):
        sink.open(other)
    assert contents(folder_of(sink)) == before


def test_a_sentence_worded_anew_goes_on_with_the_first_one(sink):
    write_all(sink)
    before = contents(folder_of(sink))
    write_all(sink, header=ReportHeader("run-1", "news", "The same in other words.", HEADER.plan))
    assert contents(folder_of(sink)) == before


def test_a_run_keeps_its_format_and_reads_under_its_name_only(sink):
    write_all(sink)
    other = ReportFolder(sink.path, *({*FORMATS} - {sink.file_format}))
    with pytest.raises(StreamError, match="Use the same format"):
        other.open(HEADER)
    for ask in (sink.read, sink.ended):
        with pytest.raises(StreamError, match="'run-1', and this run has 'run-2'"):
            ask("run-2")


def test_reports_of_other_streams_and_reports_that_break_the_guarantee_are_refused(sink):
    writer = sink.open(HEADER)
    with pytest.raises(StreamError, match="different streams"):
        writer.write(report(0, stream="olds"))
    with pytest.raises(StreamError, match="different streams"):
        writer.end(RunEnded("olds", 1))
    with pytest.raises(ReportFileError, match="noisy_count must be null"):
        writer.write(report(0, HeavyHitter("a", ABOVE, 5)))
    assert os.listdir(sink.path) == ["header.json"]


def test_files_of_others_are_not_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    sink = ReportFolder(str(tmp_path))
    with pytest.raises(StreamError, match="holds other files"):
        sink.open(HEADER)
    with pytest.raises(StreamError, match="cannot be used"):
        ReportFolder(str(tmp_path / "thesis.tex")).open(HEADER)
    with pytest.raises(StreamError, match="no reports of a stream"):
        read_report_folder(tmp_path)
    assert contents(tmp_path) == {"thesis.tex": b"mine"}


def test_damage_is_told_in_one_line(sink):
    write_all(sink)
    folder = folder_of(sink)
    for name, content in itertools.product(contents(folder), (b"", b"{}\n", b"[1]\n", b"\xff\x00")):
        good = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        with pytest.raises(StreamError) as caught:
            sink.read("run-1")
        assert "\n" not in str(caught.value)
        (folder / name).write_bytes(good)
    first, second = sorted(folder.glob("2017*"))[:2]
    os.replace(first, second)
    with pytest.raises(StreamError, match="is not a window of this run"):
        sink.read("run-1")
    with pytest.raises(StreamError, match="is not a window of this run"):
        sink.open(HEADER).write(REPORTS[1])


def test_everybody_can_read_the_files_whatever_the_umask(sink):
    before = os.umask(0o077)
    try:
        write_all(sink)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder_of(sink).iterdir()} == {0o644}


def test_what_the_dead_left_is_removed_when_it_is_old(sink):
    write_all(sink)
    before = contents(folder_of(sink))
    names = [f".2017-10-01T030000Z-00000000.jsonl.{number:032x}.tmp" for number in range(2)]
    for name in names:
        (folder_of(sink) / name).write_bytes(b"half")
    os.utime(folder_of(sink) / names[0], times=(time.time() - 4000,) * 2)
    sink.open(HEADER)
    assert contents(folder_of(sink)) == {**before, names[1]: b"half"}
    assert sink.read("run-1") == (HEADER, REPORTS, ENDED)


def test_a_sink_travels_in_a_job_graph_and_says_what_is_wrong_with_it(sink):
    assert pickle.loads(pickle.dumps(sink)) == sink  # noqa: S301
    with pytest.raises(ValueError, match="jsonl, avro, got 'parquet'"):
        ReportFolder("reports", "parquet")
    with pytest.raises(ValueError, match="must be a path that is not empty, got ''"):
        ReportFolder("")


class Row(NamedTuple):
    """What Beam makes of a report in another process: a type of its own with the same fields."""

    stream: str
    window_start: int
    window_end: int
    heavy_hitters: list
    epsilon_total: float
    delta: float
    epsilon_spent: float


def test_rows_of_beam_are_the_same_reports(sink):
    write_all(sink)
    before = contents(folder_of(sink))
    write_all(sink, [Row(*window) for window in REPORTS])
    assert contents(folder_of(sink)) == before


# ---------------------------------------------------------------------------------------------------------------------
# Workers that die
# ---------------------------------------------------------------------------------------------------------------------

MANY = [report(window, HeavyHitter(f"item-{window}", ABOVE, None)) for window in range(60)]


def windows_in(folder):
    return sum(name.startswith("2017") for name in os.listdir(folder)) if folder.exists() else 0


def worker(sink):
    """Starts a process that writes everything from the beginning."""
    child = os.fork()
    if not child:
        status = 1
        try:
            write_all(sink, MANY)
            status = 0
        finally:
            os._exit(status)
    return child


def test_workers_killed_anywhere_leave_whole_windows_and_the_last_one_finishes(sink, tmp_path):
    """30 deaths, two workers at a time for half of them; each starts anew from the beginning and gets a bit further."""
    source = random.Random(5)
    killed = 0
    for death in range(30):
        children = [worker(sink) for _ in range(1 + death % 2)]
        deadline = time.monotonic() + 60
        while windows_in(folder_of(sink)) < 2 * death and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(source.uniform(0, 0.005))  # so that it meets any step of a file
        for child in children:
            os.kill(child, signal.SIGKILL)
        statuses = [os.waitpid(child, 0)[1] for child in children]
        assert all(os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0 for status in statuses)
        killed += sum(map(os.WIFSIGNALED, statuses))
        header, reports, ended = sink.read("run-1")
        assert header in (HEADER, None)
        assert 2 * death <= len(reports)
        assert reports == MANY[: len(reports)]
        assert ended is None or len(reports) == len(MANY)
    assert killed >= 10, "the test kills while they write"
    assert os.waitstatus_to_exitcode(os.waitpid(worker(sink), 0)[1]) == 0
    write_all(ReportFolder(str(tmp_path / "calm"), sink.file_format), MANY)
    visible = {name: data for name, data in contents(folder_of(sink)).items() if not name.startswith(".")}
    assert visible == contents(tmp_path / "calm")


@pytest.mark.parametrize("step", ["fchmod", "fsync", "link", "unlink"])
def test_a_worker_that_dies_between_two_steps_is_made_good(sink, monkeypatch, step):
    """Before and after each step of a file, as a process would stop there: nothing is tidied up."""
    writer = sink.open(HEADER)
    for window, (name, after) in enumerate(itertools.product([step], [False, True])):
        child = os.fork()
        if not child:
            original = getattr(os, name)

            def die(*arguments, original=original, after=after, **options):
                if after:
                    original(*arguments, **options)
                os._exit(7)

            setattr(os, name, die)
            try:
                writer.write(MANY[window])
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert sink.read("run-1")[1] in (MANY[:window], MANY[: window + 1])
        writer.write(MANY[window])
        assert sink.read("run-1")[1] == MANY[: window + 1]
    assert all(json.loads(path.read_text()) for path in folder_of(sink).glob("header.json"))
