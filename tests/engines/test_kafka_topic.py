"""A Kafka topic read from a real broker: by position, again and again the same; what is gone is never passed over."""

from __future__ import annotations

import json
import time

import pytest

from dp_transforms.errors import StreamError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.kafka_reader import BROKEN_RECORD, NO_VALUE
from dp_transforms.logs.streams.kafka_topic import KafkaTopic
from tests.engines import needs, wait_for
from tests.engines.kafka_server import QUICK
from tests.helpers.event_files_oracle import SECRET

pytestmark = needs("kafka")

MICROS = 1_506_826_800_000_000
FIELDS = EventFields(time_unit="us")


def _values(begin, end):
    return [json.dumps({"user": f"u{n}", "item": "i", "timestamp": MICROS + n}).encode() for n in range(begin, end)]


def _times(begin, end):
    return list(range(MICROS + begin, MICROS + end))


def _topic(kafka, name, **more: object):
    more = {"client_config_file": QUICK, **more}
    return KafkaTopic(kafka.bootstrap, name, FIELDS, **more)  # type: ignore[arg-type]


def _reader(kafka, name, **more: object):
    return _topic(kafka, name, **more).partitions()[0].open()  # type: ignore[return-value]


def _read_to_the_end(reader, position=None, max_records=10_000):
    polls = []

    def is_at_end():
        polls.append(reader.poll(polls[-1].position if polls else position, max_records=max_records, max_seconds=0.5))
        assert polls[-1].records <= max_records
        return polls[-1].is_at_end

    wait_for("the end of a partition", is_at_end)
    return polls


def _event_times(polls):
    return [moment for polled in polls for moment in polled.batch.time_micros.tolist()]


def test_every_position_gives_the_same_records_again(kafka):
    kafka.create_topic("json", partitions=2)
    before = time.time_ns() // 1_000_000 * 1_000
    kafka.produce("json", [*_values(0, 300), SECRET.encode(), None, *_values(300, 500)])
    kafka.produce("json", _values(500, 505), partition=1)
    topic = _topic(kafka, "json")
    assert topic.settings().items() >= {("message.timestamp.type", "LogAppendTime"), ("cleanup.policy", "delete")}
    first, second = topic.partitions()
    assert (first.name, second.name) == ("json:0", "json:1")
    reader = first.open()
    polls = _read_to_the_end(reader, max_records=70)
    assert _event_times(polls) == _times(0, 500)
    assert sum(polled.records for polled in polls) == 502
    arrivals = [arrival for polled in polls for arrival in polled.arrival_micros.tolist()]
    assert arrivals == sorted(arrivals)
    assert before <= arrivals[0] <= arrivals[-1] <= time.time_ns() // 1_000
    rejected = [part for polled in polls for part in polled.rejected]
    assert {(part.source, part.positions, part.reason) for part in rejected} == {
        ("json:0", (300,), BROKEN_RECORD),
        ("json:0", (301,), NO_VALUE),
    }
    for again in (reader, first.open()):
        rest = _event_times(_read_to_the_end(again, polls[0].position))
        assert rest == _times(polls[0].records, 500)
    assert _event_times(_read_to_the_end(second.open())) == _times(500, 505)


def test_only_committed_records_and_gaps_between_them(kafka):
    kafka.create_topic("transactions")
    for begin, commit in ((0, True), (10, False), (20, True), (30, False)):
        with kafka.transaction("transactions", commit=commit) as produce:
            for value in _values(begin, begin + 10):
                produce(value)
    polls = _read_to_the_end(reader := _reader(kafka, "transactions"), max_records=7)
    assert _event_times(polls) == [*_times(0, 10), *_times(20, 30)]
    assert polls[-1].position == "44"  # behind the markers of all four
    assert reader.poll(polls[-1].position, max_records=7, max_seconds=0.1).is_at_end
    assert reader.confirm_end()
    with kafka.transaction("transactions", commit=True) as produce:
        produce(_values(40, 41)[0])
        while kafka.end_offset("transactions") == 44:  # not committed yet: nobody may count on it
            time.sleep(0.05)
        assert reader.poll(polls[-1].position, max_records=7, max_seconds=0.5).is_at_end
        assert reader.confirm_end()
    wait_for("the record that was committed", lambda: not reader.confirm_end())
    assert _event_times(_read_to_the_end(reader, polls[-1].position)) == _times(40, 41)
    assert reader.confirm_end()


def test_what_is_gone_is_never_passed_over(kafka):
    kafka.create_topic("deleted")
    kafka.produce("deleted", _values(0, 100))
    reader = _reader(kafka, "deleted")
    polled = wait_for("records", lambda: (one := reader.poll(None, max_records=10, max_seconds=5)).records and one)
    kafka.delete_records("deleted", 0, 50)
    for other in (_reader(kafka, "deleted"), _reader(kafka, "deleted")):
        with pytest.raises(StreamError, match=r"deleted:0 does not have the offset \d+: its retention"):
            _read_to_the_end(other, polled.position)
    assert _event_times(_read_to_the_end(_reader(kafka, "deleted"))) == _times(50, 100)
    with pytest.raises(StreamError, match="deleted:0 does not have the offset 101"):
        _read_to_the_end(_reader(kafka, "deleted"), "101")


def test_a_broker_that_is_killed_and_comes_back(kafka, capfd):
    kafka.create_topic("killed")
    kafka.produce("killed", _values(0, 100))
    reader, impatient = _reader(kafka, "killed"), _reader(kafka, "killed", unreachable_seconds=1)
    polls = _read_to_the_end(reader)
    given_up = _read_to_the_end(impatient)[-1]
    kafka.kill()
    position = polls[-1].position
    for _ in range(3):
        polled = reader.poll(position, max_records=100, max_seconds=0.3)
        assert (polled.records, polled.position) == (0, position)
    assert not polled.is_at_end  # nobody knows
    with pytest.raises(StreamError, match="no Kafka broker answers at localhost"):
        _read_to_the_end(impatient, given_up.position)
    kafka.restart()
    kafka.produce("killed", _values(100, 200))
    assert _event_times(_read_to_the_end(reader, position)) == _times(100, 200)
    assert capfd.readouterr() == ("", "")
