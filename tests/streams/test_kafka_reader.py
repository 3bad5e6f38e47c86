"""What a reader of Kafka asks, and what it believes while the broker says one thing and the fetched records another."""

import json
import types

import pytest

from dp_transforms.errors import StreamError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams import kafka_reader
from dp_transforms.logs.streams.kafka_reader import NO_ARRIVAL_TIME, PRODUCERS_TIME
from dp_transforms.logs.streams.kafka_topic import KafkaPartition, KafkaTopic
from dp_transforms.logs.streams.stream_source import NEVER

confluent_kafka = pytest.importorskip("confluent_kafka")
from tests.neighbours.broker import Message  # noqa: E402 - it needs the library, too

MILLIS = 1_506_826_800_000


def error(name):
    return confluent_kafka.KafkaError(getattr(confluent_kafka.KafkaError, name))


CUT_OFF = confluent_kafka.KafkaException(error("_TRANSPORT"))


def record(at, **more):
    """Or the end of the partition."""
    body = json.dumps({"user": "u", "item": "i", "timestamp": MILLIS}).encode()
    return Message(**{"at": at, "millis": MILLIS + at, "body": body, **more})


def end_of_partition(at):
    return record(at, trouble=error("_PARTITION_EOF"))


class Broker:
    """A consumer, and the broker behind it: what it shows of its log, and what it gives of it.

    low: the first offset that is still there. markers: how many offsets at its end hold markers of transactions.
    calls: what it was asked. said: answers in place of those of the log, ``watermarks``, ``times``, or ``records``,
    which are one for each call; an error is raised.
    """

    def __init__(self):
        self.low = self.shown = self.given = self.markers = 0
        self.kinds = {}
        self.millis = {}
        self.broken = ()
        self.first_at_time = {}  # offset by milliseconds
        self.calls = []
        self.said = {}
        self._at, self._ended_at = 0, -1
        self._fetched = []  # by a consumer that is not closed

    def cut_off(self):
        self.said = {"watermarks": CUT_OFF, "records": []}

    def _answer(self, name, usual):
        answer = self.said.get(name, usual)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def get_watermark_offsets(self, place, timeout, cached):
        if cached:  # no question to the broker, but what it said with the last records
            return self.low, self.shown
        self.calls.append(("watermarks", place.topic, place.partition, timeout, cached))
        return self._answer("watermarks", (self.low, self.shown))

    def offsets_for_times(self, places, timeout):
        found = self.first_at_time.get(places[0].offset, 0)
        return [self._answer("times", confluent_kafka.TopicPartition("t", 3, found))]

    def assign(self, places):
        self._at = places[0].offset

    def consume(self, count, seconds):
        assert count > 0, "there is nothing to ask for"
        self.calls.append(("consume", count, seconds))
        if "records" in self.said:
            answers = self.said["records"]
            self.said["now"] = answers.pop(0) if answers else []
            return self._answer("now", [])
        assert self._at >= self.low, "auto.offset.reset is error"
        messages, self._fetched = self._fetched[:count], self._fetched[count:]
        end = min(self.given, self._at + count - len(messages))
        messages += [self._message(at) for at in range(self._at, end)]
        self._at = end
        if not messages and self._at == self.given and self._ended_at != self._at:
            self._ended_at = self._at
            return [end_of_partition(self._at + self.markers)]
        if not self._fetched and end < self.given:
            self._fetched, self._at = [self._message(end)], end + 1
        return messages

    def _message(self, at):
        more = {"body": b"{"} if at in self.broken else {}
        return record(at, kind=self.kinds.get(at, 2), millis=self.millis.get(at, MILLIS + at), **more)

    def close(self):
        self._fetched, self._ended_at = [], -1


@pytest.fixture
def now(monkeypatch):
    moment = [1000.0]
    monkeypatch.setattr(kafka_reader.time, "monotonic", lambda: moment[0])
    return moment


@pytest.fixture
def broker(monkeypatch, now):
    made = Broker()

    monkeypatch.setattr(KafkaTopic, "open_consumer", lambda topic, **_: made)
    return made


def reader_of(since_micros=0, **more):
    return KafkaPartition(KafkaTopic("b:1", "t", EventFields(time_unit="ms"), **more), 3).open(since_micros)


def poll_once(one, position=None, seconds=0.25, records=10):
    return one.poll(position, max_records=records, max_seconds=seconds)


def rejected_of(polls):
    """Places and reasons."""
    assert {part.source for one in polls.kept for part in one.rejected} <= {"t:3"}
    return [(place, part.reason) for one in polls.kept for part in one.rejected for place in part.positions]


def arrivals_of(polls):
    return [at for polled in polls.kept for at in polled.arrival_micros.tolist()]


def offsets_of(polled):
    return [] if polled.places is None else polled.places.tolist()


class Polls:
    """Polls on, a fifth of a second each, and keeps what had records."""

    def __init__(self, reader, now):
        self._reader, self._now = reader, now
        self._position = None
        self.kept = []

    @property
    def read(self):
        return sum(polled.records for polled in self.kept)

    def __call__(self, times=1):
        for _ in range(times):
            polled = self._reader.poll(self._position, max_records=100, max_seconds=0.2)
            self._position = polled.position
            self.kept += [polled] if polled.records else []
            self._now[0] += 0.2
        return polled


def test_the_end_counts_only_while_the_broker_shows_nothing_more(broker, now):
    broker.shown = broker.given = 3
    poll = Polls(reader := reader_of(), now)
    assert poll(3).is_at_end
    assert reader.confirm_end()
    broker.shown = 8  # they are there, and their fetch is under way
    assert poll().is_at_end, "a hint may be old"
    assert not reader.confirm_end()
    assert not poll().is_at_end
    broker.given = 8
    assert poll(3).is_at_end
    assert (poll.read, reader.confirm_end()) == (8, True)
    broker.cut_off()
    assert not reader.confirm_end(), "who is not answered knows nothing"
    assert not poll().is_at_end
    broker.said = {}
    broker.shown = 9
    assert not poll().is_at_end
    assert not reader.confirm_end()
    reader.close()
    assert [reader.confirm_end(), reader.confirm_passed()] == [False, False]


def test_a_broker_that_shows_records_and_gives_none_is_given_up(broker, now):
    broker.shown = broker.given = 3
    poll = Polls(reader_of(unreachable_seconds=60), now)
    assert poll(3).is_at_end
    broker.shown = 4
    poll(10 * 5)
    with pytest.raises(StreamError, match=r"answers at b:1 \(unknown error\), or it does not send what t has"):
        poll(70 * 5)
    assert now[0] < 1080


def test_records_with_a_producers_time_or_none_are_rejected_and_move_no_clock(broker, now):
    most = 253_402_300_800_000
    for only, kept in ((True, [MILLIS]), (False, [MILLIS, MILLIS + 1])):
        broker.close()
        broker.shown = broker.given = 7
        broker.kinds, broker.millis = {1: 1, 2: 0}, {3: -1, 4: most, 5: most - 1}
        poll = Polls(reader_of(append_times_only=only), now)
        poll(8)
        assert arrivals_of(poll) == [millis * 1000 for millis in (*kept, most - 1, MILLIS + 6)]
        wrong = [(1, PRODUCERS_TIME)] * only + [(at, NO_ARRIVAL_TIME) for at in (2, 3, 4)]
        assert sorted(rejected_of(poll)) == wrong
        assert all(polled.passed_micros is None for polled in poll.kept)


def test_a_broken_record_passes_on_when_it_arrived(broker, now):
    broker.shown = broker.given = 5
    broker.broken = (0, 3, 4)
    poll = Polls(reader_of(), now)
    poll(5)
    (polled,) = poll.kept
    assert polled.passed_micros is not None
    assert polled.arrival_micros.tolist() == [(MILLIS + at) * 1000 for at in (1, 2)]
    assert polled.passed_micros.tolist() == [MILLIS * 1000, NEVER, (MILLIS + 4) * 1000]
    assert polled.places is not None
    assert polled.places.tolist() == [1, 2]


def test_a_poll_from_an_earlier_position_gives_nothing_that_was_fetched_before(broker, now):
    """A client that is assigned anew may still hand out what it had fetched."""
    broker.shown = broker.given = 9
    reader = reader_of()
    first = poll_once(reader, records=3)
    assert (offsets_of(first), first.position) == ([0, 1, 2], str(3)), "it has fetched one more than it gave"
    again = poll_once(reader, str(1), records=3)
    assert (offsets_of(again), again.position) == ([1, 2, 3], str(4))
    assert offsets_of(poll_once(reader, str(4), records=3)) == [4, 5, 6]


@pytest.mark.parametrize(("left", "is_drained"), [(0, True), (1700, True), (1701, False)])
def test_a_backlog_is_taken_in_pieces_and_while_more_is_left_than_was_read_it_is_one(broker, left, is_drained):
    """Thousands of objects of the client at once were looked through for garbage again and again; and a wait after
    each piece of large records made 160 MB a second."""
    broker.given, broker.shown = 1700, 1700 + left
    polled = reader_of().poll(None, max_records=9000, max_seconds=0.25)
    assert (offsets_of(polled), polled.is_drained) == (list(range(1700)), is_drained)
    assert [call[1] for call in broker.calls if call[0] == "consume"] == [1, 500, 500, 500, 500]


def test_what_retention_has_deleted_is_never_passed_over(broker, now):
    broker.low, broker.shown, broker.given = 5, 9, 9
    beginning = poll_once(reader_of(), records=2)
    assert offsets_of(beginning)[0] == 5, "the first that is still there"
    for offset in (4, 10):
        with pytest.raises(StreamError, match=f"does not have the offset {offset}: its retention"):
            poll_once(reader_of(), str(offset), records=2)
    for offset, records in ((5, [5, 6]), (9, [])):
        broker.close()
        polled = poll_once(reader_of(), str(offset), records=2)
        assert offsets_of(polled) == records


@pytest.mark.parametrize(("found", "begins_at"), [(1, 2), (4, 4), (9, 8), (-1, 8)])
def test_reading_begins_at_the_first_record_that_may_count(broker, now, found, begins_at):
    """-1: there is none; 9: it came after the end of the log was asked for."""
    broker.low, broker.shown, broker.given, broker.first_at_time = 2, 8, 8, {MILLIS: found}
    reader = reader_of(MILLIS * 1000 + 999)
    polled = poll_once(reader, records=2)
    assert offsets_of(polled)[:1] == ([begins_at] if begins_at < 8 else [])
    assert polled.position == str(begins_at + polled.records)


def test_markers_of_transactions_are_passed(broker, now):
    """The last offset holds the marker of a commit: no record stands there, and the end lies behind it."""
    broker.given, broker.markers, broker.shown = 3, 1, 4
    poll = Polls(reader := reader_of(), now)
    polled = poll(5)
    assert (poll.read, polled.position, polled.is_at_end) == (3, str(4), True)
    assert reader.confirm_end()


def test_an_end_with_records_behind_it_is_no_end(broker, now):
    broker.shown = broker.given = 9
    reader = reader_of()
    answers = [[record(0)], [record(1), end_of_partition(2), record(2)], [end_of_partition(2)], []]
    broker.said["records"] = answers
    polled = poll_once(reader, records=9)
    assert (polled.position, polled.is_at_end) == (str(3), False)
    polled = poll_once(reader, polled.position, records=9)
    assert polled.position == str(3), "an end never moves a position back"


def test_a_partition_is_read_to_where_it_ended_when_that_was_first_asked(broker, now):
    reader = reader_of()
    assert not reader.confirm_passed(), "nothing was polled"
    broker.shown = broker.given = 6
    at = poll_once(reader, records=2).position
    broker.cut_off()
    assert not reader.confirm_passed(), "who is not answered knows nothing"
    broker.said = {}
    assert not reader.confirm_passed()
    broker.shown = broker.given = 99
    seen = []
    for _ in range(4):
        at = poll_once(reader, at, records=2).position
        seen.append((int(at), reader.confirm_passed()))
    assert seen == [(offset, offset >= 6) for offset, _ in seen]
    assert seen[-1][1]
    poll_once(reader, str(7), records=2)
    assert not reader.confirm_passed(), "it was opened anew, and asks anew"


@pytest.mark.parametrize("text", ["", "{}", "-1", " 7", "9" * 20])
def test_a_position_that_is_none_of_a_topic_is_refused(broker, text):
    """Nobody begins at the beginning because a position cannot be read."""
    with pytest.raises(StreamError, match=r"^a stored position is not a position in a Kafka topic\. Start a new run"):
        poll_once(reader_of(), text)
    assert broker.calls == []


@pytest.mark.parametrize(("where", "answer"), [("watermarks", CUT_OFF), ("watermarks", None), ("records", CUT_OFF)])
def test_a_broker_that_does_not_answer_is_named_by_its_error_when_it_is_given_up(broker, now, where, answer):
    one = reader_of(5_000_000, unreachable_seconds=60)
    # Where records fail, the watermarks must too: else the reader confirms that the broker is there.
    broker.said = {"watermarks": answer, **({"records": [answer] * 1000} if where == "records" else {})}
    said = "unknown error" if answer is None else "_TRANSPORT"
    polled = poll_once(one)
    now[0] += 60.0
    assert poll_once(one, polled.position).records == 0, "a minute is not more than a minute"
    now[0] += 0.001
    with pytest.raises(StreamError, match=rf"no Kafka broker answers at b:1 \({said}\)"):
        poll_once(one, polled.position)


@pytest.mark.parametrize("answer", [CUT_OFF, types.SimpleNamespace(error=error("_TRANSPORT"), offset=3)])
def test_nothing_is_read_before_it_is_known_where_to_begin(broker, now, answer):
    broker.said = {"watermarks": (0, 9), "times": answer, "records": [[record(4)]]}
    polled = poll_once(one := reader_of(5_000_000))
    assert (polled.records, polled.position, polled.is_at_end) == (0, None, False)
    broker.said["times"] = confluent_kafka.TopicPartition("t", 3, 4)
    assert poll_once(one, polled.position, records=1).places.tolist() == [4]


def test_rights_to_a_group_do_not_matter_and_others_are_named_when_they_last(broker, now):
    """Nothing is stored for a group."""
    failed = [[record(0, trouble=error(f"{what}_AUTHORIZATION_FAILED"))] for what in ("GROUP", "TOPIC")]
    broker.said = {"watermarks": (0, 9), "records": failed}
    polled = poll_once(one := reader_of(unreachable_seconds=60))
    now[0] += 61
    polled = poll_once(one, polled.position)
    now[0] += 61
    with pytest.raises(StreamError, match=r"\(TOPIC_AUTHORIZATION_FAILED\)"):
        poll_once(one, polled.position)


@pytest.mark.parametrize(
    ("watermarks", "said"),
    [
        ((0, 9), "the Kafka partition t:3 does not have the offset 0"),
        (CUT_OFF, r"no Kafka broker answers .*_TRANSPORT"),
        (None, "no Kafka broker answers"),
    ],
)
def test_an_offset_is_gone_for_good_only_if_a_broker_says_so(broker, now, watermarks, said):
    broker.said = {"records": []}
    poll_once(one := reader_of())
    broker.said = {"watermarks": watermarks, "records": [[record(0, trouble=error("_AUTO_OFFSET_RESET"))]]}
    with pytest.raises(StreamError, match=said):
        poll_once(one, "0")
