"""Topics of a real broker, with and without one user: what the others hold reaches the monitor all the same."""

import random
import time

import pytest

from dp_transforms.logs import EventFields
from dp_transforms.logs.streams import partition_poller
from dp_transforms.logs.streams.kafka_topic import KafkaTopic
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.engines.kafka_server import QUICK
from tests.helpers.small_runs import MICROS, settings_of
from tests.helpers.trials import changed
from tests.neighbours.kafka_records import some
from tests.neighbours.logs import as_json
from tests.neighbours.replayed import assert_same_pairs
from tests.neighbours.stepped import PLANS, Stepped, Treatment, WallClock

HOUR = 3600
CLOCKS = {
    "arrival": StreamClock("arrival", 6 * HOUR, 0, HOUR, 600),
    "event": StreamClock("event", HOUR, 3 * HOUR, HOUR),
}


@pytest.mark.parametrize("clock", CLOCKS)
def test_both_topics_give_the_same(kafka, monkeypatch, clock):
    """Restarts at any step, polls of any size, to the end and with a stop between two batches of records."""
    monkeypatch.setattr(partition_poller, "MAX_SECONDS", 0.05)
    source, now = random.Random(clock), int(time.time())
    schedule = WindowSchedule.fixed(now - 4 * HOUR, now + HOUR, HOUR)
    names = [f"{clock}-{which}" for which in ("with", "without")]
    for name in names:
        kafka.create_topic(name)
    batches, moments = [], []
    for _ in range(3):
        events = [
            (f"u{source.randrange(40)}", f"item {source.randrange(9)}", (now - source.randrange(3 * HOUR)) * MICROS)
            for _ in range(200)
        ]
        batches.append({((micros // MICROS - now) // HOUR + 4, user, item) for user, item, micros in events})
        theirs = [as_json(event) for event in events]
        # The broker refuses larger ones.
        added = [body for body in some(source, 150) if len(body or b"") < 900_000]
        mixed = [*theirs, *added]
        source.shuffle(mixed)
        kafka.produce(names[0], mixed)
        kafka.produce(names[1], theirs)
        time.sleep(0.02)
        moments.append(time.time_ns() // 1000)
        time.sleep(0.02)
    for number, name in enumerate(names):
        topic = KafkaTopic(kafka.bootstrap, name, EventFields(), client_config_file=QUICK)
        (partition,) = topic.partitions()
        for stop in (None, 0, 1):
            for confirm in (True, False):
                treatment = Treatment(
                    number,
                    polls=(20, 150, 50_000),
                    confirm=confirm,
                    deaths=0.02,
                    last_arrival=None if stop is None else moments[stop],
                    asked=None if stop is None else 0,
                    jump_seconds=1800,
                )
                wall = WallClock(time.time_ns() // 1000)
                settings = changed(settings_of(PLANS["fixed"]), schedule=schedule)
                run = Stepped(partition.open, CLOCKS[clock], wall, treatment, settings=settings)
                assert_same_pairs(run.pairs, frozenset().union(*batches[: None if stop is None else stop + 1]))
