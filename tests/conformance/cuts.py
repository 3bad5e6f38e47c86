"""One log cut in many ways, each of which must leave the same reports."""

from __future__ import annotations

import functools
import random
from typing import NamedTuple

from tests.helpers.memory_stream import Arrival
from tests.helpers.small_runs import MICROS
from tests.reference.log import Event
from tests.transcripts.cases import HOUR, NIGHTS, START, TOPICS, rows_of

SPAN = 20 * 60  # seconds that a stream is out of order, and that its windows wait
_LONGEST = 16_384  # bytes of an item


class Cut(NamedTuple):
    """order: of the events; a stream holds it within each `SPAN`. pieces: files, batches or polls. copies: of each
    event. hours: of the log that have events. is_late: besides the log, all of it comes again and more with it, each
    event when its windows are closed. runs_twice: each bundle."""

    order: str = "time"
    pieces: int = 1
    shards: int | None = None
    copies: int = 1
    hours: int = 12
    is_late: bool = False
    runs_twice: bool = False


CUTS = {
    "whole": Cut(shards=1),
    "crumbs": Cut("shuffled", pieces=24, shards=10),
    "back": Cut("backwards", pieces=5),
    "twice": Cut("shuffled", pieces=4, shards=3, copies=2),
    "again": Cut(pieces=6, shards=2, runs_twice=True),
    "late": Cut("shuffled", pieces=9, shards=4, is_late=True),  # streams alone
    "early": Cut(pieces=3, hours=3),  # and then nothing is held any more
    "nothing": Cut(shards=2, hours=0),  # no event in the declared range
}


@functools.cache
def log_of(hours: int) -> tuple[Event, ...]:
    """The readable rows of the transcripts' log; those outside of the declared range stay in any case."""
    rows = [row for night in range(NIGHTS) for row in rows_of(night)]
    return tuple(
        (user, item, time * MICROS)
        for user, item, time in rows
        if user
        and item
        and time is not None
        and len(item) <= _LONGEST
        and (user == "outside" or hours_of(time) < hours)
    )


def hours_of(time: int) -> int:
    return (time - START) // HOUR


def events_of(cut: Cut) -> list[Event]:
    """In the order of the cut, for those who see all of it at once."""
    events = [event for event in log_of(cut.hours) for _ in range(cut.copies)]
    if cut.order == "shuffled":
        random.Random(3).shuffle(events)
    elif cut.order == "backwards":
        events.sort(key=lambda event: -event[2])
    return events


def arrivals_of(cut: Cut) -> list[Arrival]:
    """As a stream brings them: no event that counts comes later than `SPAN` after it happened."""
    draws, span = random.Random(4), SPAN * MICROS
    came = {
        "time": lambda at: at,
        "shuffled": lambda at: at + draws.randrange(span),
        "backwards": lambda at: (at // span + 1) * span,
    }[cut.order]
    events = [event for event in sorted(log_of(cut.hours), key=lambda event: event[2]) for _ in range(cut.copies)]
    sign = -1 if cut.order == "backwards" else 1
    arrivals = [Arrival(event, came(event[2])) for event in events]
    return sorted(arrivals, key=lambda arrival: (arrival.micros, sign * arrival.event[2]))


def late_of(cut: Cut, window_hours: int) -> list[Arrival]:
    """What comes when all windows that hold it are closed, within the hour after that, with others."""
    hour, stays_open = HOUR * MICROS, window_hours * HOUR * MICROS + SPAN * MICROS
    guests = [
        (f"late-{begun}-{number}", TOPICS[(begun + number) % 6], START * MICROS + hour * begun)
        for begun in range(11)
        for number in range(60)
    ]
    again = [event for event in log_of(cut.hours) if event[0] != "outside"]
    late = [Arrival(event, ((event[2] + stays_open) // hour + 1) * hour + 60 * MICROS) for event in (*guests, *again)]
    return sorted(late, key=lambda arrival: (arrival.micros, arrival.event[2])) if cut.is_late else []


def pieces_of(elements: list, cut: Cut) -> list[list]:
    size = -(-len(elements) // cut.pieces)
    return [elements[low : low + size] for low in range(0, len(elements), size)] or [[]]
