"""Topics of a stream: whose clock they have is asked before a run begins, and said or refused."""

from __future__ import annotations

import pytest

from dp_transforms import KafkaTopic, StreamClock
from dp_transforms.cli.options import Options
from dp_transforms.cli.stream import command, stream_request
from dp_transforms.errors import StreamError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.kafka_topic import check_clock, check_topic
from tests.helpers.small_runs import key_file


def lines_of_check(monkeypatch, append_times, *, kind="arrival", only=True, **more: bool):
    monkeypatch.setattr(KafkaTopic, "settings", lambda topic: (append_times, more.get("is_compacted")))
    lines: list[str] = []
    topic = KafkaTopic("b:1", "clicks", EventFields(), append_times_only=only)
    check_clock(StreamClock(kind), lines.append)
    check_topic(topic, StreamClock(kind), lines.append, allow="--clock producer")
    return lines


def request_of(folder, *words: str):
    given = ["--noise-key-file", key_file(folder), "--start", "2026-01-01", "--end", "2026-01-02", "--window", "1h"]
    given += ["--epsilon", "2", "--delta", "1e-9", "--charge", "hits"]
    options = Options(**command.make_context("stream", [*words, *given], obj=[]).params)
    return stream_request(options, []).job


@pytest.mark.parametrize(
    ("words", "only"), [([], True), (["--clock", "producer"], False), (["--clock", "event"], False)]
)
def test_the_command_believes_producers_only_where_it_was_told_to(words, only, tmp_path):
    output = str(tmp_path / "reports")
    source = request_of(tmp_path, "--input", "kafka://b:1/clicks", "--output", output, *words).source
    assert isinstance(source, KafkaTopic)
    assert source.append_times_only is only


def test_the_brokers_clock_needs_no_word(monkeypatch):
    assert lines_of_check(monkeypatch, True, is_compacted=False) == []
    for append_times in (False, True, None):
        (line,) = lines_of_check(monkeypatch, append_times, kind="event", only=False)
        assert "one event far ahead closes windows for everybody" in line


def test_the_producers_clock_is_refused_unless_it_is_asked_for(monkeypatch):
    with pytest.raises(StreamError, match="give --clock producer") as raised:
        lines_of_check(monkeypatch, False)
    assert "--entity-name clicks --add-config message.timestamp.type=LogAppendTime" in str(raised.value)
    for append_times in (False, True, None):
        (line,) = lines_of_check(monkeypatch, append_times, only=False)
        assert line.startswith("--clock producer: ")


def test_who_is_not_told_says_so(monkeypatch):
    (line,) = lines_of_check(monkeypatch, None)
    assert "Records with a producer's time are rejected" in line


@pytest.mark.parametrize("kind", ["arrival", "event"])
def test_a_compacted_topic_is_refused(monkeypatch, kind):
    with pytest.raises(StreamError, match=r"compacted \(cleanup.policy\)"):
        lines_of_check(monkeypatch, True, kind=kind, is_compacted=True)
