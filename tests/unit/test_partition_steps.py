"""What the steps of a partition send: all of it announced, once, and the same after whatever was lost."""

from __future__ import annotations

import random

import pytest

from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.logs.streams.partition_poller import PartitionPoller
from dp_transforms.monitor.pairs import UserPairs
from tests.helpers.memory_stream import BROKEN, Arrival, MemoryPartition
from tests.helpers.partition_records import CLOCK, MICROS, SHARDS, at
from tests.helpers.small_runs import SECRET, settings_of, small_plan


def poller_of(plan, *, confirm=True, clock=CLOCK):
    held = settings_of(plan)
    return PartitionPoller(held, held.stream_keys(SECRET), clock, SHARDS, domain=None, confirm=confirm)


def event(user, time):
    return (f"u{user}", "item", round(time * MICROS))


def test_what_all_steps_send_for_a_shard_is_what_the_last_of_them_announces():
    plan = small_plan(12)
    start = plan.schedule.start_seconds
    arrivals = [Arrival(event(row % 40, start + row), at(start + row)) for row in range(700)]
    poller, reader = poller_of(plan, confirm=False), MemoryPartition("p", tuple(arrivals), 37).open()
    progress, sent, announced, users = poller.start(), {}, {}, set()
    for step_number in range(100):
        step = poller.step("p", progress, reader, at(start + 10**6 * (1 + step_number)))
        progress = poller.restore(progress.to_bytes())
        for key, message in step.messages:
            assert key not in announced, "nothing comes after the announcement"
            sent[key] = sent.get(key, 0) + 1
            if message.announced:
                announced[key] = message.announced
            if message.blob:
                users |= {(key[0], int(user)) for user in UserPairs.from_bytes(message.blob).users}
    assert progress.is_over
    assert sent == announced
    assert sorted(sent) == [(window, shard) for window in range(12) for shard in range(SHARDS)]
    assert len(users) == 40 * 11 + 40  # the last window holds 40 events of 40 users


def pairs_sent(steps):
    """What each shard of each window gets, put together, and how many messages were announced to it."""
    blobs, announced, sent = {}, {}, {}
    for key, message in (sent_message for step in steps for sent_message in step.messages):
        sent[key] = sent.get(key, 0) + 1
        announced[key] = announced.get(key, 0) + message.announced
        if message.blob:
            blobs.setdefault(key, []).append(UserPairs.from_bytes(message.blob))
    assert sent == announced
    return {key: UserPairs.merge(parts).to_bytes() for key, parts in blobs.items()}


@pytest.mark.parametrize("seed", range(5))
def test_steps_that_are_lost_and_done_again_change_nothing(seed):
    """State and messages are stored together, now and then; in between everything dies, and polls differ after it."""
    plan = small_plan(12, sliding=3)
    start = plan.schedule.start_seconds
    source = random.Random(seed)
    draws = [(source.randrange(300), source.randrange(30)) for _ in range(900)]
    arrivals = [
        Arrival(event(source.randrange(40), start + at_second), at(start + at_second + late))
        for at_second, late in draws
    ]
    arrivals.sort(key=lambda arrival: arrival.micros)

    def run(can_die):
        poller, steps, unstored, wall = poller_of(plan), [], [], at(start + 10**6)
        stored, confirmed = poller.start().to_bytes(), set()
        progress = poller.restore(stored)
        for _ in range(2000):
            if progress.is_over and not unstored:
                return pairs_sent(steps)
            wall += at(source.randrange(40)) if can_die else at(40)
            reader = MemoryPartition("p", tuple(arrivals), source.randrange(1, 60) if can_die else 900).open()
            intent = progress.intent
            is_confirmed = intent is not None and intent.name in confirmed
            unstored.append(poller.step("p", progress, reader, wall, is_confirmed=is_confirmed))
            if can_die and source.random() < 0.4:
                progress, unstored = poller.restore(stored), []
            elif not can_die or source.random() < 0.5:
                steps, unstored, stored = [*steps, *unstored], [], progress.to_bytes()
                confirmed |= {progress.intent.name} if progress.intent is not None else set()
        raise AssertionError("the partition did not end")

    assert run(can_die=True) == run(can_die=False)


def test_an_intent_waits_for_its_confirmation_and_a_restart_asks_again():
    plan = small_plan(12)
    start = plan.schedule.start_seconds
    poller, reader = poller_of(plan), MemoryPartition("p", (), 10).open()
    progress, now = poller.start(), at(start + 10**6)
    first = poller.step("p", progress, reader, now)
    assert (first.marker, first.messages, first.is_busy) == (progress.intent.name, [], False)
    restored = poller.restore(progress.to_bytes())
    assert poller.step("p", restored, reader, now + at(5)).marker == first.marker
    done = poller.step("p", restored, reader, now + at(9), is_confirmed=True)
    assert done.marker is None
    assert len(done.messages) == 12 * SHARDS
    assert restored.is_over
    assert restored.clock_micros == now - at(CLOCK.idle_timeout_seconds), "the clock that was intended, not a later one"


def test_what_is_sent_does_not_tell_whether_a_drain_or_an_event_after_the_end_closed_the_windows():
    """The end that is published is made of this: one user's event after the declared end must not change it."""
    plan = small_plan(12)
    start, now = plan.schedule.start_seconds, at(plan.schedule.end_seconds + 300)
    arrivals = [Arrival(event(row, start + 10 * row), at(start + 10 * row)) for row in range(30)]
    after = plan.schedule.end_seconds + 200
    poller, sent = poller_of(plan), []
    for log in ([*arrivals, Arrival(event(99, after), at(after))], arrivals):
        progress, reader = poller.start(), MemoryPartition("p", tuple(log), 100).open()
        steps = [poller.step("p", progress, reader, now)]
        assert progress.is_over == (len(log) > len(arrivals)), "the event after the end leaves nothing to drain"
        for is_confirmed in (False, True, False, True):
            steps.append(
                poller.step("p", progress, reader, now, find_stop=lambda now=now: now, is_confirmed=is_confirmed)
            )
            now += CLOCK.shown_within_micros
        assert progress.is_over
        sent.append([message for step in steps for message in step.messages])
    assert sent[0] == sent[1]


def test_rejected_and_future_events_are_told_by_place_and_counted():
    plan = small_plan(12)
    start = plan.schedule.start_seconds
    future = event(1, start + 500)
    arrivals = [Arrival(BROKEN, at(start)), Arrival(future, at(start)), Arrival(event(2, start), at(start))]
    arrivals.append(Arrival(event(3, start - 5), at(start)))  # outside of the declared range
    poller, reader = poller_of(plan), MemoryPartition("p", tuple(arrivals), 10).open()
    step = poller.step("p", poller.start(), reader, at(start))
    assert step.rejected[0] == RejectedEvents("p", [0], "broken")
    assert (step.rejected[1].source, step.rejected[1].positions) == ("p", [future[2]])
    assert {name: count for name, count in step.counts.items() if count} == {
        "records_read": 4,
        "events_read": 3,
        "events_rejected": 1,
        "events_from_the_future": 1,
        "events_outside_range": 1,
    }
    assert len(step.messages) == 1
