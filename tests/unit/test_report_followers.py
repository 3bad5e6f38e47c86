"""A run of any sink read as it grows: each report once, and a look does not read what an earlier one has read."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import sqlite3
import time
from collections.abc import Iterator

import pytest

from dp_transforms.errors import StreamError
from dp_transforms.monitor.window_report import HeavyHitter, RunEnded, WindowReport
from dp_transforms.reports import ReportHeader, topic_records
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.reports.report_table import ReportTable
from dp_transforms.reports.report_topic import ReportTopic
from dp_transforms.reports.report_writer import ReportSink

HOUR = 3_600_000_000
HEADER = ReportHeader("run-1", "news", "Each user's whole log is protected.", {"epsilon": 2.0})
OTHER = ReportHeader("run-2", "news", "Each user's whole log is protected.", {"epsilon": 2.0})
ENDED = RunEnded("news", 6, 4)
KINDS = ("folder", "sqlite", "topic")


def report(window: int, users: int = 9) -> WindowReport:
    return WindowReport("news", window * HOUR, (window + 1) * HOUR, [HeavyHitter("a", None, users)], 2.0, 1e-9, 0.5)


REPORTS = [report(window) for window in range(6)]


@contextlib.contextmanager
def sink_of(kind: str, place: pathlib.Path) -> Iterator[ReportSink]:
    if kind == "folder":
        yield ReportFolder(str(place / "reports"))
    elif kind == "topic":
        kafka = pytest.importorskip("confluent_kafka")
        cluster = kafka.Producer({"test.mock.num.brokers": 1, "log_level": 0})
        broker = next(iter(cluster.list_topics("reports", timeout=60).brokers.values()))
        yield ReportTopic(f"{broker.host}:{broker.port}", "reports")
        del cluster
    else:
        yield ReportTable(f"{kind}:///{place}/reports.db")


@pytest.fixture(autouse=True)
def without_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(topic_records.CONSUMER, "check.crcs", False)  # the simulated cluster computes none


def write(sink: ReportSink, reports: list[WindowReport], ended: RunEnded | None = None) -> None:
    with contextlib.closing(sink.open(HEADER)) as writer:
        for each in reports:
            writer.write(each)
        if ended is not None:
            writer.end(ended)
        writer.commit()


@pytest.mark.waits
def test_every_sink_can_be_followed_and_each_report_comes_once(tmp_path: pathlib.Path) -> None:
    """One test of all kinds: `make test` runs the first of each eight cases."""
    for kind in KINDS:
        place = tmp_path / kind
        place.mkdir()
        with sink_of(kind, place) as sink:
            follower = sink.follow("run-1")
            assert follower.read_new() == (None, [], None, True), kind
            write(sink, REPORTS[2:4])
            header, reports, ended, _ = follower.read_new()
            assert (header, reports, ended) == (HEADER, REPORTS[2:4], None), kind
            assert follower.read_new() == (HEADER, [], None, False), kind
            write(sink, [REPORTS[2], REPORTS[5], REPORTS[1]])
            assert follower.read_new() == (HEADER, [REPORTS[1], REPORTS[5]], None, False), kind
            write(sink, [], ENDED)
            assert follower.read_new() == (HEADER, [], ENDED, False), kind
            follower.close()
            second = sink.follow("run-1")
            assert second.read_new() == (HEADER, [REPORTS[1], *REPORTS[2:4], REPORTS[5]], ENDED, True), kind
            second.close()


def test_what_was_read_is_not_read_again(tmp_path: pathlib.Path) -> None:
    """Damage of an old window, which every reading of it refuses, goes unnoticed."""
    folder = ReportFolder(str(tmp_path / "reports"))
    table = ReportTable(f"sqlite:///{tmp_path}/reports.db")
    followers = [folder.follow("run-1"), table.follow("run-1")]
    for sink in (folder, table):
        write(sink, REPORTS[:2])
    for follower in followers:
        assert follower.read_new()[1] == REPORTS[:2]
    next(iter((tmp_path / "reports").glob("1970*"))).write_bytes(b"damaged")
    with contextlib.closing(sqlite3.connect(tmp_path / "reports.db")) as connection, connection:
        connection.execute("UPDATE shh_reports SET zone = 'sky' WHERE window_start < '1970-01-01 00:30'")
    for sink, follower in zip((folder, table), followers, strict=True):
        with pytest.raises(StreamError):
            sink.read("run-1")
        write(sink, REPORTS[2:3])
        assert follower.read_new() == (HEADER, REPORTS[2:3], None, False)


def test_many_new_windows_come_in_one_reading(tmp_path: pathlib.Path) -> None:
    """More than a statement asks for; those that came late lie between the others."""
    table = ReportTable(f"sqlite:///{tmp_path}/reports.db")
    many = [report(window) for window in range(1300)]
    follower = table.follow("run-1")
    write(table, many[::13])
    assert follower.read_new()[1] == many[::13]
    write(table, many)
    assert follower.read_new()[1] == [each for each in many if each not in many[::13]]
    assert follower.read_new()[1] == []


def test_another_run_in_its_place_is_a_first_reading(tmp_path: pathlib.Path) -> None:
    for kind in ("folder", "sqlite"):
        sink, whichever = (
            (ReportFolder(str(tmp_path / "reports")), ReportFolder(str(tmp_path / "reports")).follow())
            if kind == "folder"
            else (ReportTable(f"sqlite:///{tmp_path}/r.db"), ReportTable(f"sqlite:///{tmp_path}/r.db").follow())
        )
        write(sink, REPORTS[:3])
        assert whichever.read_new() == (HEADER, REPORTS[:3], None, True)
        shutil.rmtree(tmp_path / "reports", ignore_errors=True)
        (tmp_path / "r.db").unlink(missing_ok=True)
        with contextlib.closing(sink.open(OTHER)) as writer:
            writer.write(report(1, 77))
            writer.write(REPORTS[4])
            writer.commit()
        assert whichever.read_new() == (OTHER, [report(1, 77), REPORTS[4]], None, True)
        assert whichever.read_new() == (OTHER, [], None, False)


def test_an_error_loses_nothing(tmp_path: pathlib.Path) -> None:
    folder = ReportFolder(str(tmp_path / "reports"))
    follower = folder.follow("run-1")
    write(folder, REPORTS[:1])
    follower.read_new()
    write(folder, REPORTS[1:3])
    name = max((tmp_path / "reports").glob("1970*"))
    content = name.read_bytes()
    name.write_bytes(b"half of")
    with pytest.raises(StreamError):
        follower.read_new()
    name.write_bytes(content)
    assert follower.read_new() == (HEADER, REPORTS[1:3], None, False)
    with pytest.raises(StreamError, match="belongs to another run"):
        folder.follow("run-2").read_new()


@pytest.mark.waits
def test_a_look_at_a_topic_without_news_does_not_wait_for_the_broker(tmp_path: pathlib.Path) -> None:
    """`shh stream` pauses ten times as long as a look took: reports would be shown late."""
    with sink_of("topic", tmp_path) as sink:
        write(sink, REPORTS)
        follower = sink.follow("run-1")
        assert follower.read_new()[1] == REPORTS
        took = []
        for _ in range(8):
            begin = time.monotonic()
            assert follower.read_new()[1] == []
            took.append(time.monotonic() - begin)
        follower.close()
    assert min(took) < 0.35
