"""Rows of a pipeline (`CollectEvents`): which rows of others count does not depend on what one user's rows hold."""

from __future__ import annotations

import datetime
import operator
import random
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam import read_events
from dp_transforms.beam.read_events import CollectEventsDoFn
from dp_transforms.core.event_batch import EventBatch
from tests.neighbours.logs import ADDED_USER, PLACES, crowd, iso, place, without_added
from tests.reference.log import Event

UNITS = ("us", "s", None)
USER, ITEM, TIME = (operator.attrgetter(name) for name in ("user", "item", "at"))


class Unreadable:
    def __getattr__(self, name: str) -> Any:
        raise RecursionError


class UnreadableTime:
    @property
    def micros(self) -> int:
        raise OverflowError("a cell")


HOSTILE_TIMES = [
    *(None, True, 0, -1, 2**63, 2**63 - 1, -(2**63), 2**64, 10**400, 0.5, 1e300, float("nan"), float("inf")),
    *("", "0", "soon", "2026-01-01", "2026-01-01T00:00:00+99:99", "\ud800", "½", "x" * 20_000, b"2026", [1], {}, 1j),
    *(np.timedelta64(1, "s"), np.datetime64("NaT"), UnreadableTime(), Timestamp(micros=2**70)),
    *(Timestamp(micros=-(2**62)), datetime.datetime.max, datetime.datetime.min, datetime.date(2026, 1, 1)),
    datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=23))),
]
HOSTILE: list[Any] = [
    *(beam.Row(user=ADDED_USER, item="A", at=time) for time in HOSTILE_TIMES),
    *(beam.Row(user=user, item="A", at=1) for user in (None, "", 1.5, b"\xff", "\ud800", "x" * 20_000, 10**20_000)),
    *(beam.Row(user=ADDED_USER, item=item, at=1) for item in (None, "", [], b"\xff", "x" * 20_000)),
    *(beam.Row(user=ADDED_USER, item="A"), Unreadable(), None, 7),
]


def spelled(event: Event, unit: str | None, source: random.Random) -> Any:
    """A row of others, in one of the ways that are read."""
    user, item, micros = event
    ways: list[Any] = [Timestamp(micros=micros), datetime.datetime.fromtimestamp(micros // 10**6, datetime.UTC)]
    ways += [iso(micros)] if unit is None else [micros, str(micros)] if unit == "us" else [micros // 10**6]
    return beam.Row(user=user, item=item, at=source.choice(ways))


def read(rows: Sequence[Any], unit: str | None) -> list[tuple[str, str, int]]:
    """The events of others among these rows, which are one bundle."""
    do_fn = CollectEventsDoFn(USER, ITEM, TIME, unit)
    do_fn.start_bundle()
    found = [stamped.value for row in rows for stamped in do_fn.process(row, Timestamp(0))]
    found += [each.value for each in do_fn.finish_bundle() if not isinstance(each, beam.pvalue.TaggedOutput)]
    events = []
    for batch in found:
        assert isinstance(batch, EventBatch)
        events += zip(batch.user.to_pylist(), batch.item.to_pylist(), batch.time_micros.tolist(), strict=True)
    return sorted(event for event in events if event[0] != ADDED_USER)


@pytest.mark.parametrize("unit", UNITS)
def test_rows_of_others_count_whatever_one_user_writes(monkeypatch: pytest.MonkeyPatch, unit: str | None) -> None:
    source = random.Random(str(unit))
    others = [spelled(event, unit, source) for event in crowd(source.getrandbits(32))]
    expected = None
    for where in PLACES:
        monkeypatch.setattr(read_events, "_MAX_BATCH", source.choice([1, 7, 1000]))
        log = place(others, HOSTILE, where, source.getrandbits(32))
        alone = read([row.body for row in without_added(log)], unit)
        assert len(alone) == len(others)
        assert read([row.body for row in log], unit) == alone
        expected = expected or sorted(alone)
        assert alone == expected
