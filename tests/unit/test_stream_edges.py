"""Edges of what goes into a stream and comes out of it: the last number that is taken, and whose name an error has."""

import dataclasses
import json
import os
import time
import types

import pytest

from dp_transforms.errors import StreamError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams import log_folder
from dp_transforms.logs.streams.folder_files import FolderFile, FolderPosition
from dp_transforms.logs.streams.log_folder import FolderReader, LogFolder
from dp_transforms.logs.streams.partition_progress import PartitionProgress, StreamClock
from dp_transforms.monitor.window_report import RunEnded
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.reports import ReportFileError, ReportHeader
from dp_transforms.reports.report_writer import check_same_run, ended_fields, parse_ended

START = 1_506_826_800_000_000
HEADER = ReportHeader("run-1", "news", "Each user's whole log is protected.", {"epsilon": 2.0})


# --- A folder that is read


def test_how_long_a_folder_may_settle():
    for seconds in (0.1, 3600, 1.0):
        assert LogFolder("f", EventFields(), seconds).settle_seconds == seconds
    for seconds in (0.0999, 3600.5, 0, -1.0):
        with pytest.raises(ValueError, match=r"settle_seconds must be 0\.1 to 3600, got"):
            LogFolder("f", EventFields(), seconds)
    assert LogFolder("f", EventFields()).settle_seconds == 1.0
    with pytest.raises(ValueError, match="needs the path of a folder"):
        LogFolder("", EventFields())


def test_a_folder_is_known_by_its_fields_alone(tmp_path):
    fields = EventFields("u", "i", "t", "ms")
    assert json.loads(LogFolder("f", fields).fingerprint()) == {
        **dataclasses.asdict(fields),
        "csv_line_ends_in_cells": False,
        "facets": [],
        "stream_field": None,
    }
    assert LogFolder("f", fields).fingerprint() == LogFolder("g", fields, 7.0).fingerprint()
    assert LogFolder("f", EventFields("u", "i", "t", "s")).fingerprint() != LogFolder("f", fields).fingerprint()
    (partition,) = LogFolder(f"{tmp_path}/.", fields, 7.0).partitions()
    assert partition.name == f"folder:{tmp_path}"
    assert partition.folder == LogFolder(str(tmp_path), fields, 7.0)
    with pytest.raises(StreamError, match="it is not a folder that can be read"):
        LogFolder(f"{tmp_path}/none", fields).partitions()


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only by sleeping."""
    clock = types.SimpleNamespace(nanos=10**18, seconds=0.0, slept=[])

    def sleep(seconds):
        clock.slept.append(seconds)
        clock.nanos += round(seconds * 1e9)
        clock.seconds += seconds

    named = {"time_ns": lambda: clock.nanos, "monotonic": lambda: clock.seconds, "sleep": sleep}
    monkeypatch.setattr(log_folder, "time", types.SimpleNamespace(**named))
    return clock


def reader_at(folder, settle_seconds=1.0, **more):
    return FolderReader(LogFolder(str(folder), EventFields(), settle_seconds), **more)


def test_files_settle_to_the_nanosecond(tmp_path, clock):
    """The end of the folder is not seen where a file waits, unless it is of the future."""
    path = tmp_path / "a.csv"
    path.write_text("user,item,timestamp\n")
    waits = [(-1, None, True), (0, None, False), (2_499_999_999, None, False), (2_500_000_000, "a.csv", False)]
    for since, taken, is_at_end in waits:
        clock.nanos = path.stat().st_ctime_ns + since
        polled = reader_at(tmp_path, 2.5).poll(None, max_records=1, max_seconds=0.0)
        assert (json.loads(polled.position)["name"], polled.is_at_end) == (taken, is_at_end), since


def test_a_folder_is_passed_when_what_came_by_then_is_read(tmp_path, clock):
    reader = reader_at(tmp_path, 2.0)
    reader.poll(None, max_records=1, max_seconds=0.0)
    assert not reader.confirm_passed(), "first asked now"
    for nanos, is_passed in ((1_999_999_999, False), (1, True)):
        clock.nanos += nanos
        reader.poll(FolderPosition().to_text(), max_records=1, max_seconds=0.0)
        assert reader.confirm_passed() is is_passed
    reader.close()
    assert not reader.confirm_end()
    reader.poll(None, max_records=1, max_seconds=0.0)
    assert not reader.confirm_passed(), "asked anew"


@pytest.mark.parametrize(("later", "last"), [(-1, "a.csv"), (0, "b.csv")])
def test_a_file_of_the_moment_at_which_it_was_asked_is_read_to_its_end(tmp_path, clock, later, last):
    for name in ("a.csv", "b.csv"):
        time.sleep(0.02)
        (tmp_path / name).write_text("user,item,timestamp\nu,i,2026-01-01\n")
    reader, position = reader_at(tmp_path, 2.0), None
    clock.nanos = (tmp_path / "b.csv").stat().st_ctime_ns + later
    while not reader.confirm_passed():
        position = reader.poll(position, max_records=1, max_seconds=0.0).position
        clock.nanos += 10**9
    assert position is not None
    stored = json.loads(position)
    assert (stored["name"], stored["events"], stored["is_done"]) == (last, 1, True)


def test_a_poll_looks_five_times_a_second_and_ends_in_time(tmp_path, clock):
    polled = reader_at(tmp_path).poll(None, max_records=1, max_seconds=0.5)
    assert clock.slept[:3] == pytest.approx([0.2, 0.2, 0.1])
    assert clock.seconds == pytest.approx(0.5)
    assert (polled.records, polled.is_at_end) == (0, True)


@pytest.mark.parametrize(("later", "is_listed"), [(2_000_000_000, True), (2_000_000_001, False)])
def test_a_folder_is_listed_again_while_its_time_is_coarse(tmp_path, clock, monkeypatch, later, is_listed):
    os.utime(tmp_path, ns=(10**18, 10**18))
    clock.nanos = 10**18 + later
    reader = reader_at(tmp_path)
    reader.poll(None, max_records=1, max_seconds=0.0)
    listed = []
    real = os.scandir
    monkeypatch.setattr(log_folder.os, "scandir", lambda path: listed.append(path) or real(path))
    reader.poll(FolderPosition().to_text(), max_records=1, max_seconds=0.0)
    assert listed == [str(tmp_path)] * is_listed


@pytest.mark.parametrize(("since", "is_opened"), [(0, True), (-1, True), (1, False)])
def test_a_file_of_the_very_moment_since_which_files_count_is_opened(tmp_path, clock, since, is_opened):
    path = tmp_path / "a.csv"
    path.write_text("user,item,timestamp\n")
    micros = path.stat().st_ctime_ns // 1000
    clock.nanos = path.stat().st_ctime_ns + 10**10
    polled = reader_at(tmp_path, since_micros=micros + since).poll(None, max_records=1, max_seconds=0.0)
    assert (json.loads(polled.position)["name"] == "a.csv") is is_opened


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, -1])
def test_positions_of_a_folder_to_their_edges(number):
    position = FolderPosition(FolderFile(number, "a.csv"), -number, 1, 2, 3, False)
    assert FolderPosition.of_text(position.to_text()) == position, "times may be any"
    for name in ("size", "blocks", "events"):
        text = position._replace(**{name: number}).to_text()
        if number == 2**63 - 1:
            assert getattr(FolderPosition.of_text(text), name) == number
        else:
            with pytest.raises(StreamError, match="not a position in a folder"):
                FolderPosition.of_text(text)


# --- The end of a run


def test_the_end_of_a_run_to_its_edges():
    for windows, reports in ((0, 0), (126, 127), (2**63 - 1, 2**63 - 1)):
        ended = RunEnded("news", windows, reports)
        assert parse_ended(ended_fields(ended)) == ended
    fields = ended_fields(RunEnded("news", 5, 3))
    wrong = [{**fields, name: value} for name in ("windows", "reports") for value in (-1, 2**63, True, 1.0)]
    wrong += [{**fields, "stream": 7}, {**fields, "stream": "\ud800"}, {**fields, "more": 1}, [], None, "x"]
    wrong += [{name: fields[name] for name in fields if name != left_out} for left_out in fields]
    for one in wrong:
        with pytest.raises(ReportFileError, match="must have a stream, windows and reports"):
            parse_ended(one)


def test_a_run_is_known_by_its_name_its_stream_and_its_plan():
    check_same_run("it", HEADER, HEADER)
    for other, said in (
        (ReportHeader("run-2", *header_rest()), "run_id"),
        (ReportHeader("run-1", "olds", *header_rest()[1:]), "stream"),
    ):
        with pytest.raises(StreamError, match=f"it belongs to another run: its {said} is"):
            check_same_run("it", other, HEADER)
    with pytest.raises(StreamError, match="it belongs to run 'run-1' with another plan"):
        check_same_run("it", ReportHeader("run-1", *header_rest()[:2], {"epsilon": 3.0}), HEADER)
    check_same_run("it", ReportHeader("run-1", "news", "Worded anew.", {"epsilon": 2.0}), HEADER)


def header_rest():
    return "news", "Each user's whole log is protected.", {"epsilon": 2.0}


# --- What is stored of a partition


def test_a_partition_begins_with_nothing():
    """What is stored of it, to the byte: a later release must read it."""
    progress = PartitionProgress(WindowSchedule(0, 7200, 3600, 3600), StreamClock(), shards=2)
    begin = -(2**62)
    assert progress.to_bytes() == (
        b'{"version":2,"shards":2,"position":null,"clock_micros":%d,"next_window":0,"stop_micros":null,"intent":null,'
        b'"read_at_micros":%d,"run":"","sent":[]}' % (begin, begin)
    )
    progress.sent(1, 1, 3)
    progress.sent(1, 0, 2)
    progress.position, progress.run = "here", "r"
    intent = progress.intend_stop(5)
    assert progress.to_bytes() == (
        b'{"version":2,"shards":2,"position":"here","clock_micros":%d,"next_window":0,"stop_micros":null,'
        b'"intent":{"name":"%s","kind":"stop","micros":5},"read_at_micros":%d,"run":"r","sent":[[1,[2,3]]]}'
        % (begin, intent.name.encode(), begin)
    )
    again = PartitionProgress.from_bytes(
        progress.to_bytes(), WindowSchedule(0, 7200, 3600, 3600), StreamClock(), shards=2
    )
    assert again.to_bytes() == progress.to_bytes()
