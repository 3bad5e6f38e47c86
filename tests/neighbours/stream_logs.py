"""Partitions of a stream, with and without x', and the pairs of the others that must count: by each record alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dp_transforms.logs.streams.partition_progress import ARRIVAL, StreamClock
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.small_runs import MICROS, START
from tests.neighbours.logs import USERS
from tests.neighbours.replayed import Pair
from tests.reference.log import Event

MILLI = 1000
CLOCKS = {
    "arrival": StreamClock("arrival", 7, 10, 20, 15),
    "arrival, in order": StreamClock("arrival", 0, 0, 5, 4),
    # Times step back by at most 30 s in each partition, x' included: so docs/guarantee.md wants it of this clock.
    "event": StreamClock("event", 10, 20, 20, 15),
}
HISTORY_SECONDS = 10**9  # so much later than it happened it arrives, where events set the clock


class Stamped(NamedTuple):
    """A record that reached the log then. event: of others, and readable, else None."""

    micros: int
    body: bytes | None
    event: Event | None = None
    is_added: bool = False


Spell = Callable[[Event], bytes]


def others(clock: StreamClock, spell: Spell, seed: int, count: int = 300, odd: Sequence[bytes] = ()) -> list[Stamped]:
    """All over the declared range, with pauses in which a partition is idle; some too late, some hardly in time, some
    from the future, some unreadable."""
    source = random.Random(seed)
    behind = int((clock.allowed_lateness_seconds + clock.out_of_order_seconds) * MICROS)
    disorder = int(clock.out_of_order_seconds * MICROS)
    arrival, number, records = START * MICROS, 0, []
    span = (
        150 if count > 1_000 else source.choice([150, 300])
    )  # seconds, pauses apart: to the end of the range, or beyond
    while number < count:
        pause = 95_000 if number in (count // 3, count // 2) else 0  # the partition is idle, a window ends in it
        arrival += (pause or int(source.expovariate(count / (span * MILLI)))) * MILLI
        number += 1
        stamp = arrival - source.randrange(disorder // MILLI + 1) * MILLI
        if clock.clock == ARRIVAL:
            early = source.choice([0, 1, 5, 90, 200, -1, -4, -19, -25, *(source.uniform(0, 70) for _ in range(9))])
            time = stamp - int(early * MICROS)
        else:  # as its producers wrote it, in some disorder; it may arrive much later
            time, stamp = arrival - source.randrange(behind), arrival + HISTORY_SECONDS * MICROS
            if source.random() < 0.05:
                time = stamp + int(clock.max_ahead_seconds * MICROS) + MILLI
        item = "A" if source.random() < 0.2 else f"item-{number // 20}"  # hardly one pair twice: each record matters
        event = (source.choice(USERS), item, time)
        records.append(Stamped(stamp, spell(event), event))
        if odd and source.random() < 0.1:
            records.append(Stamped(stamp, source.choice(odd)))
    return records


def with_added(
    records: Sequence[Stamped], added: Sequence[bytes | None], seed: int, *, where: str = "spread", first: int = 0
) -> list[Stamped]:
    """The added records among those of the others, each stamped between its neighbours, as a broker does. first: none
    of them stands before this record."""
    source = random.Random(seed)
    last = len(records)
    places = {"first": [first] * len(added), "last": [last] * len(added)}
    at = places.get(where) or [source.randrange(first, last + 1) for _ in added]
    mixed: list[Stamped] = []
    for begin, end, own in zip([0, *sorted(at)], [*sorted(at), last], [*added, ...], strict=True):
        mixed += records[begin:end]
        if own is not ...:
            stamp = records[min(end, last - 1)].micros
            mixed.append(Stamped(stamp, own, None, True))
    return mixed


def pairs_that_count(
    records: Iterable[Stamped], schedule: WindowSchedule, clock: StreamClock, last_arrival: int | None = None
) -> frozenset[Pair]:
    """Of the others: what was not from the future, in time by its own arrival, and there by the stop."""
    pairs = set()
    for record in records:
        if record.event is None or (last_arrival is not None and record.micros > last_arrival):
            continue
        user, item, time = record.event
        if time > record.micros + clock.max_ahead_micros:
            continue
        first = int(schedule.first_window(np.array([time]))[0])
        for window in range(first, first + schedule.windows_per_event) if first >= 0 else ():
            ends = schedule.window_end_micros(window)
            if clock.clock != ARRIVAL or record.micros <= ends + clock.lateness_micros:
                pairs.add((window, user, item))
    return frozenset(pairs)
