"""When a partition may be taken for idle or read to its end, what a stored state belongs to, and what is rejected."""

import dataclasses
import functools

import pyarrow as pa
import pytest

from dp_transforms.core.contributions import Contributions
from dp_transforms.core.item_table import ItemTable
from dp_transforms.errors import StreamError
from dp_transforms.logs.streams.partition_progress import CLOCK_END, StreamClock
from tests.helpers.memory_stream import BROKEN, Arrival, MemoryPartition, poller_of
from tests.helpers.small_runs import SECRET, settings_of, small_plan

MICROS = 1_000_000
PLAN = small_plan(12)
START = PLAN.schedule.start_seconds
CLOCK = StreamClock("arrival", 7, 3, 20, 15)


def poller(**more):
    held = settings_of(PLAN)
    arguments = {"confirm": False, **more}
    return poller_of(held, held.stream_keys(SECRET), CLOCK, 2, **arguments)


def at(seconds):
    return round((START + seconds) * MICROS)


@pytest.mark.parametrize("is_draining", [False, True])
def test_no_window_closes_before_records_that_are_there_and_not_read(is_draining):
    reader = MemoryPartition("p", (), 100).open()  # takes what it has for all that there is
    reader.confirm_end = reader.confirm_passed = lambda: False  # asked for it, it learns that it is not
    stepped = poller(confirm=True)
    progress = stepped.start()
    find_stop = (lambda: at(40)) if is_draining else lambda: None
    for second in range(100, 200, 10):
        step = stepped.step_at("p", progress, reader, at(second), find_stop=find_stop, is_confirmed=True)
        assert (progress.intent, progress.next_window, step.messages) == (None, 0, [])
    reader.confirm_end = reader.confirm_passed = lambda: True
    stepped.step_at("p", progress, reader, at(200), find_stop=find_stop)
    assert progress.intent is not None
    assert (progress.intent.micros == CLOCK_END) is is_draining


@pytest.mark.parametrize(
    ("event", "counted"), [(BROKEN, "events_rejected"), (("u", "item", at(10**6)), "events_from_the_future")]
)
def test_what_is_refused_again_and_again_holds_no_window_open(event, counted):
    """One such record every 8 seconds: the partition is never idle, and the arrivals are all the clock it has."""
    horizon = PLAN.schedule.horizon
    size = PLAN.schedule.window_seconds
    arrivals = tuple(Arrival(event, at(second)) for second in range(0, size * (horizon + 2), 8))
    stepped = poller()
    progress, refused = stepped.start(), 0
    for number in range(len(arrivals)):
        shown = MemoryPartition("p", arrivals[: number + 1], 100).open()
        refused += stepped.step_at("p", progress, shown, arrivals[number].micros).counts[counted]
        if progress.is_over:
            break
    assert progress.is_over
    assert refused == number + 1
    assert arrivals[number].micros <= at(size * horizon + 7 + 3 + 8)


def unstamped(poll, position, **limits):
    return dataclasses.replace(poll(position, **limits), passed_micros=None)


@pytest.mark.parametrize("kind", ["arrival", "event"])
def test_what_has_no_clock_value_leaves_a_partition_idle(kind):
    """A record every 8 seconds, refused: with a producer's stamp that no clock believes, or by the clock of events."""
    held, clock = settings_of(PLAN), dataclasses.replace(CLOCK, clock=kind)
    stepped = poller_of(held, held.stream_keys(SECRET), clock, 2, confirm=False)
    progress = stepped.start()
    for second in range(0, 400 + PLAN.schedule.window_seconds * PLAN.schedule.horizon, 4):
        arrivals = tuple(Arrival(BROKEN, at(0)) for _ in range(second // 8))
        reader = MemoryPartition("p", arrivals, 100).open()
        if kind == "arrival":
            reader.poll = functools.partial(unstamped, reader.poll)
        stepped.step_at("p", progress, reader, at(second))
        if progress.is_over:
            break
    assert progress.is_over
    assert int(progress.position or 0) > 40


def test_items_that_are_not_public_do_not_shift_who_is_late():
    """x' holds an item that is not public, in time. Behind it come events of others, some in time and some late."""
    held = settings_of(PLAN)
    keys = held.stream_keys(SECRET)
    public = ItemTable.of_labels(pa.array(["known"]), keys.hash_items)[0]
    end = PLAN.schedule.window_end_micros(0)
    late = end + 7 * MICROS + 1
    others = [Arrival((f"u{n}", "known", at(1)), late if n % 3 else at(2)) for n in range(9)]
    rows_of_x = [Arrival(("x'", "unknown", at(1)), at(2)), Arrival(("x'", "unknown", at(1)), late)]
    sent = []
    for log in (others, [*rows_of_x, *others], [rows_of_x[1], *others, rows_of_x[0]]):
        # A clock of arrivals that may step back, so that each record alone decides.
        clock = dataclasses.replace(CLOCK, out_of_order_seconds=300)
        stepped = poller_of(held, keys, clock, 1, public_items=public, confirm=False)
        step = stepped.step_at("p", stepped.start(), MemoryPartition("p", tuple(log), 100).open(), at(2))
        users = {int(user) for _, message in step.messages for user in Contributions.from_bytes(message.blob).users}
        sent.append(users)
        assert step.counts["events_of_other_items"] == len(log) - len(others)
    in_time = keys.hash_users(pa.array([f"u{n}" for n in range(0, 9, 3)]))[:, 0].tolist()
    assert sent == [set(in_time)] * 3


def test_the_state_of_other_records_or_of_another_run_stream_or_plan_is_refused():
    """Each by itself: the keys are those of the run that the state belongs to."""
    held = settings_of(PLAN)
    keys = held.stream_keys(SECRET)

    def poller_with(source="fields: user", **other):
        return poller_of(dataclasses.replace(held, **other), keys, CLOCK, 2, confirm=False, source=source)

    stored = poller_with().start().to_bytes()
    assert poller_with().restore(stored).next_window == 0
    for other in ({"run_id": "run-2"}, {"stream": "others"}, {"fingerprint": "another"}, {"source": "mail"}):
        with pytest.raises(
            StreamError, match=r"a run with another plan, clock, stream, run id.* other fields, formats"
        ):
            poller_with(**other).restore(stored)


def test_an_intent_waits_for_its_confirmation_and_a_restart_asks_again():
    stepped, reader, now = poller(confirm=True), MemoryPartition("p", (), 10).open(), at(10**6)
    progress = stepped.start()
    first = stepped.step_at("p", progress, reader, now)
    assert progress.intent is not None
    assert (first.marker, first.messages, first.is_busy) == (progress.intent.name, [], False)
    restored = stepped.restore(progress.to_bytes())
    assert stepped.step_at("p", restored, reader, now + 5 * MICROS).marker == first.marker
    done = stepped.step_at("p", restored, reader, now + 9 * MICROS, is_confirmed=True)
    assert (done.marker, len(done.messages), restored.is_over) == (None, PLAN.schedule.horizon * 2, True)
    assert restored.clock_micros == now - CLOCK.idle_timeout_micros, "the clock that was intended, not a later one"


def test_what_is_sent_does_not_tell_whether_a_drain_or_an_event_after_the_end_closed_the_windows():
    """The end that is published is made of this: one user's event after the declared end must not change it."""
    end = PLAN.schedule.end_seconds - START
    arrivals = [Arrival((f"u{row}", "item", at(10 * row)), at(10 * row)) for row in range(30)]
    stepped, sent, now = poller(confirm=True), [], at(end + 300)
    for log in ([*arrivals, Arrival(("u99", "item", at(end + 200)), at(end + 200))], arrivals):
        progress, reader = stepped.start(), MemoryPartition("p", tuple(log), 100).open()
        steps = [stepped.step_at("p", progress, reader, now)]
        assert progress.is_over == (len(log) > len(arrivals)), "the event after the end leaves nothing to drain"
        for is_confirmed in (False, True, False, True):
            steps.append(
                stepped.step_at("p", progress, reader, now, find_stop=lambda now=now: now, is_confirmed=is_confirmed)
            )
            now += CLOCK.shown_within_micros
        assert progress.is_over
        sent.append([message for step in steps for message in step.messages])
    assert sent[0] == sent[1]


def test_what_is_read_is_counted():
    events = [BROKEN, ("u1", "item", at(500)), ("u2", "item", at(0)), ("u3", "item", at(-5))]
    stepped = poller(confirm=True)
    arrivals = tuple(Arrival(event, at(0)) for event in events)
    step = stepped.step_at("p", stepped.start(), MemoryPartition("p", arrivals, 10).open(), at(0))
    counts = {"records_read": 4, "events_read": 3, "events_rejected": 1}
    counts |= {"events_from_the_future": 1, "events_outside_range": 1}
    assert {name: count for name, count in step.counts.items() if count} == counts
    assert len(step.messages) == 1


class Endless:
    """Ten records come with every poll, and nobody ever sees the end of this log."""

    def __init__(self):
        self._shown = self._read = 0
        self._asked = None

    def poll(self, position, *, max_records, max_seconds):
        self._shown += 10
        arrivals = tuple(Arrival((f"u{n}", "item", at(n / 10)), at(n / 10)) for n in range(self._shown))
        reader = MemoryPartition("p", arrivals, 10).open()
        polled = reader.poll(position, max_records=max_records, max_seconds=max_seconds)
        self._read = int(polled.position)
        return dataclasses.replace(polled, is_at_end=False)

    def confirm_end(self):
        return False

    def confirm_passed(self):
        self._asked = self._asked or self._shown
        return self._read >= self._asked

    def close(self):
        return


def test_records_that_come_for_ever_do_not_put_off_the_end():
    stepped, reader, after = poller(), Endless(), 0
    progress = stepped.start()
    for second in range(100):
        step = stepped.step_at("p", progress, reader, at(second), find_stop=lambda: at(30))
        after += step.counts["events_after_stop"]
        if progress.is_over:
            break
    # The log is given the time that it may take to show a record, and is then read to where it ended.
    assert second == 30 + CLOCK.idle_timeout_seconds + 1
    assert after == int(progress.position or 0) - 301 > 50


def ten_arrivals(records_per_poll):
    arrivals = tuple(Arrival((f"u{n}", "item", at(0)), at(n)) for n in range(10))
    return MemoryPartition("p", arrivals, records_per_poll).open()


def test_a_stop_and_the_end_behind_it_are_each_stored_before_they_act():
    """The last two of ten records arrived after the stop. Nobody is asked for it again, whatever the file says then."""
    reader, stepped, now = ten_arrivals(4), poller(confirm=True), at(60)
    progress = stepped.start()
    stepped.step_at("p", progress, reader, now)
    stopped = stepped.step_at("p", progress, reader, now, find_stop=lambda: at(7))
    assert (stopped.messages, progress.position, progress.stop_micros) == ([], "4", None), (
        "what was polled is not taken"
    )
    progress = stepped.restore(progress.to_bytes())
    again = stepped.step_at("p", progress, reader, now, find_stop=lambda: at(12))
    assert (again.marker, again.messages, progress.position) == (stopped.marker, [], "4")
    stepped.step_at("p", progress, reader, now, is_confirmed=True)
    assert progress.stop_micros == at(7)
    steps = [stepped.step_at("p", progress, reader, now, find_stop=lambda: at(12)) for _ in range(3)]
    assert [step.counts["events_after_stop"] for step in steps] == [0, 2, 0]
    assert (progress.position, progress.next_window, progress.is_read) == ("10", 0, False)
    assert steps[1].marker == steps[2].marker != stopped.marker
    progress = stepped.restore(progress.to_bytes())
    last = stepped.step_at("p", progress, reader, now, is_confirmed=True)
    assert progress.is_over
    assert len([message for _, message in last.messages if message.announced]) == 2 * PLAN.schedule.horizon


@pytest.mark.parametrize(("second", "seen_late"), [(9, 0), (8, 1)])
def test_who_counted_what_arrived_after_a_stop_before_it_saw_the_stop_says_so(second, seen_late):
    """Clocks that differ by more than was declared, or a stop file that shows late: the operator must know."""
    reader, stepped = ten_arrivals(100), poller()
    progress = stepped.start()
    stepped.step_at("p", progress, reader, at(0))
    step = stepped.step_at("p", progress, reader, at(0), find_stop=lambda: at(second))
    assert step.counts["stops_seen_late"] == seen_late
